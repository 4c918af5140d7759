"""Play one backend of Django's tasks with its worker: ``python -m dev.soak.tasks.play COMMAND …``.

Without a command the backend's workers are in this process. It prints as JSON how many of two tasks
have run, what a duplicate was told, whether the next one ran, and what became of one that was to
come back.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import django

if "celery" in sys.argv[1:]:
    importlib.import_module("dev.soak.tasks.counted_celery")
django.setup()

from django.core.management import call_command
from django.tasks import TaskResultStatus

from dev.soak.tasks import counted
from django_redlock import redlock
from django_redlock.tasks import DuplicateTask
from tests.support.processes import process
from tests.support.waiting import eventually
from tests.tasks.work import LOG

LONG = 60.0
FIRST = "the first result"
RAISES = "`DuplicateTask`"


def noted(event: str, key: str) -> int:
    """How often this was written down."""
    lines = map(json.loads, Path(LOG).read_text(encoding="utf-8").splitlines())
    return Counter((line["event"], line["key"]) for line in lines)[event, key]


def duplicate(first: str) -> str:
    """Enqueue a second one; what is told of it, or "" if it is none."""
    try:
        result = counted.once.enqueue("a")
    except DuplicateTask:
        return RAISES
    return FIRST if str(result.id) == first else ""


def main(command: list[str]) -> dict[str, object]:
    """Play it; what was seen."""
    call_command("migrate", verbosity=0)
    gate = Path(f"{LOG}.a")
    gate.touch()
    with ExitStack() as stack:
        first = str(counted.once.enqueue("a").id)
        told = {duplicate(first)}
        if command:
            log = Path(LOG).with_name("worker.log")
            stack.enter_context(process([sys.executable, "-m", *command], os.environ, log))
        eventually(lambda: noted("begun", "a"), within=LONG, what="a worker")
        told.add(duplicate(first))
        gate.unlink()
        eventually(lambda: noted("ended", "a"), within=LONG, what="the end of the first")
        runs = noted("begun", "a")
        eventually(lambda: not duplicate(first), within=LONG / 2, what="the next one")
        eventually(lambda: noted("ended", "a") > runs, within=LONG, what="its run")
        with redlock("key:b", ttl=10):
            result = counted.later.enqueue("b")

            def has_failed() -> bool:
                backend = counted.later.get_backend()
                return not command and backend.get_result(result.id).status == FAILED

            eventually(
                lambda: noted("deferred", "b") or has_failed(), within=LONG, what="a refusal"
            )
        if noted("deferred", "b"):
            eventually(lambda: noted("ended", "b"), within=LONG, what="one that came back")
        came_back = "comes back" if noted("ended", "b") else "fails"
        return {"runs": runs, "told": sorted(told), "later": came_back, "all": noted("begun", "a")}


FAILED = TaskResultStatus.FAILED
print(json.dumps(main(sys.argv[1:])), flush=True)
os._exit(0)  # threads of a pool may be there
