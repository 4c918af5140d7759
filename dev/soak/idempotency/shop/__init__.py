"""A site that sells, for ``rig``.

SOAK_CANDIDATE    a name of ``candidates``
SOAK_DATABASE     the entry of DATABASES, as JSON
SOAK_LOCKS        the alias "default" of REDLOCK, as JSON
SOAK_REDIS        the address of a Redis, for those that need one
SOAK_HISTORY      a file for what happens
SOAK_WAIT         seconds that a request waits for its turn
SOAK_UNAVAILABLE  what is done without a majority: "refuse" or "run"
"""
