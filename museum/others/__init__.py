"""Other people's locks, unchanged. Each module runs in an environment that has its library.

It imports that library, the standard library, and the interface of a recipe. The options are those
of the library's documentation: its defaults, with the ttl of the run, and with timeouts for sockets
where the library leaves them to its user.
"""

import logging

logging.disable()  # some tell of each server that does not reply
