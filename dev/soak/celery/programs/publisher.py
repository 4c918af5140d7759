"""Send messages for keys in a random order, evenly over some seconds.

python -m dev.soak.celery.programs.publisher ours --messages 5000 --keys 100 --seconds 60
"""

from __future__ import annotations

import argparse
import importlib
import random
import time

from dev.soak.celery.history import key_of

from . import bodies


def publish(candidate: str, numbers: list[int], keys: list[int], seconds: float) -> None:
    """Send each message at its time, or at once where that is over."""
    program = importlib.import_module(f"{__package__}.{candidate}")
    began = time.monotonic()
    for turn, (number, index) in enumerate(zip(numbers, keys, strict=True)):
        time.sleep(max(0.0, began + seconds * turn / len(numbers) - time.monotonic()))
        key, before = key_of(program.MODES, index), time.monotonic()
        duplicate, task_id = program.send(key, number)
        told = {"key": key, "number": number, "before": before, "duplicate": duplicate}
        told["id"] = task_id
        bodies.notebook.write("sent", **told, probe=not seconds)


def main() -> None:
    """Send them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("candidate")
    parser.add_argument("--first", type=int, default=0, help="the first number")
    parser.add_argument("--messages", type=int, default=0)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=0, help="0: one message for each key")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.seconds:
        draw = random.Random(chosen.seed)
        keys = [draw.randrange(chosen.keys) for _ in range(chosen.messages)]
    else:
        keys = list(range(chosen.keys))
    numbers = [chosen.first + turn for turn in range(len(keys))]
    publish(chosen.candidate, numbers, keys, chosen.seconds)


if __name__ == "__main__":
    main()
