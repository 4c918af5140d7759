"""The shop as ``gunicorn --preload`` starts it: the master has locked before its workers fork.

PRELOADED_LOCK   the name of a lock that the master holds from then on
PRELOADED_NAIVE  set for a broken variant: a child knows nothing of the fork
"""

import os

if "PRELOADED_NAIVE" in os.environ:
    vars(os)["register_at_fork"] = lambda **_: None
    from django_redlock.nodes import background

    vars(background)["_begin_in_child"] = lambda: None

from django_redlock import redlock
from tests.views.shop.wsgi import application

for number in range(5):  # connections to every node, which each worker inherits
    with redlock(f"preloading:{number}"):
        pass
lease = redlock(os.environ["PRELOADED_LOCK"]).acquire()

__all__ = ["application", "lease"]
