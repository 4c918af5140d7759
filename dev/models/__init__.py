"""Exhaustive models of the rules: every order of events of a small case; no line of the package.

``make test-rest`` plays them, and ``make nightly`` the larger cases. Who changes a rule in
``django_redlock/core/`` changes its model first: ``python -m pytest dev/models``.

    heal          a renewal that heals; ``search`` in it is the search of all models
    failover      a single node whose replica is promoted
    revoke        a lock that is taken away
    wake          what one nonce may do: the wake-ups of one name
    slots         the wake-ups of a limited lock
    once          a record of work that is done once, which a stranger puts back
    completion    a record beside a copy of the message; the model is in its test
"""
