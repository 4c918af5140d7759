"""A process that forks in the block of ``.atomic()``, whose child leaves the block."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

from tests.fencing import outside


def forks(told: dict[str, Any]) -> None:
    """Write in the block, and let a child leave it: by an exception, or at its end."""
    from django_redlock import redlock

    from .tables import Counter

    parent, status = os.getpid(), -1
    try:
        with redlock("forks").atomic():
            Counter.objects.filter(pk=told["pk"]).update(value=told["value"])
            pid = os.fork()
            if pid:
                status = os.waitpid(pid, 0)[1]
            else:
                warnings.simplefilter("ignore")  # the lease is the parent's, says one
                if told["raises"]:
                    sys.exit()
    finally:
        if os.getpid() != parent:
            # A driver ends the session of what it forgets; so nothing may be forgotten here.
            Counter.objects.filter(pk=told["pk"]).exists()
            os._exit(0)
    outside.say("done", child=status)


if __name__ == "__main__":
    outside.set_up()
    outside.say("ready")
    for each in outside.heard():
        forks(each)
