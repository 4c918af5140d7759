"""A process that takes turns as it is told; run by test_waiting.

Arguments: the alias, as JSON, and how many seconds there are between two looks of who waits;
more than the usual half to nine tenths, so that who has the name sooner was woken. It obeys lines
of its input:

    take NAME WAIT HOLD     take one turn
    turns NAME WAIT HOLD    one after another, until it is killed
    thread … / fork …       the same in a thread, in a child

and tells what happens: ``asking NAME``, ``in NAME FENCE``, ``out NAME``, ``over NAME`` before it
when the lease was over, ``refused NAME ERROR``, ``interrupted NAME`` (Ctrl-C). Each line ends with
the moment, on the clock that all processes of a machine share. SIGUSR1 starts a thread that takes
the same turn as the last one that was told.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

import django
from django.conf import settings

from django_redlock import LockTaken, NodesUnavailable, lease, redlock, waiting

last: list[str] = []


def say(*words: object) -> None:
    """Print one line, whole, with the moment."""
    os.write(1, f"{' '.join(map(str, words))} {time.monotonic()}\n".encode())


def take(name: str, wait: float, hold: float) -> None:
    """Take one turn."""
    try:
        say("asking", name)
        with redlock(name, wait=wait) as held:
            say("in", name, held.fence)
            time.sleep(hold)
            if held.remaining() <= 0:
                say("over", name)
            say("out", name)
    except (LockTaken, NodesUnavailable) as error:
        say("refused", name, type(error).__name__)
    except KeyboardInterrupt:
        say("interrupted", name)


def obey(words: list[str]) -> None:
    """Do what a line says."""
    last[:] = ["take", *words[1:]]
    how, name, wait, hold = words[0], words[1], float(words[2]), float(words[3])
    take(name, wait, hold)
    while how == "turns":
        take(name, wait, hold)


def in_a_thread(words: list[str]) -> None:
    """Do it in a thread."""
    threading.Thread(target=obey, args=(words,), daemon=True).start()


def main() -> None:
    """Obey one line after another."""
    settings.configure(
        REDLOCK={"default": json.loads(sys.argv[1])}, INSTALLED_APPS=["django_redlock"]
    )
    django.setup()
    vars(lease)["RENEWALS"] = 20  # while it runs, no stall of the machine ends a lease
    vars(waiting)["LONGEST"] = 60.0  # the order is that of arrival, however long that takes
    for seconds in map(float, sys.argv[2:]):
        vars(waiting).update(LOOK_EVERY=(seconds, seconds), NEWS=2 * seconds)
    signal.signal(signal.SIGUSR1, lambda *_: in_a_thread(list(last)))
    say("ready")
    while line := sys.stdin.readline():
        kind, *words = line.split()
        if kind == "thread":
            in_a_thread(words)
        elif kind != "fork":
            obey([kind, *words])
        elif os.fork() == 0:
            obey(words)
            os._exit(0)


if __name__ == "__main__":
    main()
