import os
import signal
import sys
from types import FrameType

ENDINGS = [signal.SIGINT, signal.SIGTERM]
if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
    ENDINGS.append(signal.SIGHUP)


def leave(number: int, _frame: FrameType | None) -> None:
    """Unwind everything, once: a second Ctrl-C must not interrupt the tidying up."""
    for ending in ENDINGS:
        signal.signal(ending, signal.SIG_IGN)
    raise SystemExit(128 + number)


if __name__ == "__main__":
    for each in ENDINGS:
        signal.signal(each, leave)
    os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings"
    from example_project.demo.play import main

    sys.exit(main())
