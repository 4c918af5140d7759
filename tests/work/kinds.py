"""The kinds of tasks, each with one face: what is promised of both is written once."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import Context
from importlib.util import find_spec
from typing import Any, Final
from unittest.mock import patch

from asgiref.sync import sync_to_async
from celery import states

from django_redlock import celery
from django_redlock.celery.publishing import HEADER
from tests.celery import desk as celerys
from tests.work import made

RAN, LATER, SKIPPED, FAILED, ENDED = "ran", "later", "skipped", "failed", "ended"


class Kind:
    """One kind of tasks, whose messages wait in a queue until they are run by hand.

    Attributes:
        log: the arguments of bodies that have begun.
        bodies: what the next bodies do besides, each once.
        told: what the last message has ended with.
        made: the last task that was made.
    """

    name: str
    module: Any  # of the kind, where users import

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.bodies: list[Callable[[], Any]] = []
        self.told: Any = None
        self.made: Any = None

    def body(self, value: Any) -> Any:
        """Note that a body has begun, and do what is said."""
        self.log.append(value)
        if self.bodies:
            self.bodies.pop(0)()
        return celerys.held_name()

    def task(self, key: str | None, **options: Any) -> Any:
        """A task whose body runs under a lock."""
        raise NotImplementedError

    def send(self, task: Any, value: object = 1) -> str:
        """Send a message; the id of the one that counts."""
        raise NotImplementedError

    def call(self, task: Any, value: object = 1) -> Any:
        """Call the function without a message."""
        raise NotImplementedError

    def waiting(self) -> int:
        """How many messages wait."""
        raise NotImplementedError

    def run(self) -> str:
        """Let a worker run the message that waits, due or not; what became of it."""
        raise NotImplementedError

    def drain(self) -> None:
        """Run messages until none waits."""
        while self.waiting():
            self.run()

    def copy(self) -> str:
        """Deliver the message of the last run again, and run it: what became of it."""
        raise NotImplementedError

    def stored(self) -> Any:
        """What is stored of the message of the last run: its state, and its result."""
        raise NotImplementedError

    def broken(self) -> AbstractContextManager[object]:
        """No message can be sent in the block: each is an OSError."""
        raise NotImplementedError

    def unmark(self, task: Any, args: Any) -> None:
        """Remove the mark of the messages with these arguments."""
        raise NotImplementedError

    def name_of(self, task: Any) -> str:
        """The name of a task."""
        raise NotImplementedError

    def run_name(self, task: Any) -> str:
        """The run name of the message of the last run."""
        raise NotImplementedError

    def _outcome(self, before: tuple[int, int], told: Any, *, failed: bool) -> str:
        self.told = told
        bodies, waiting = before
        if failed:
            return FAILED
        if len(self.log) > bodies:
            return RAN
        if self.waiting() > waiting:
            return LATER
        return SKIPPED if isinstance(told, dict) and told.get("skipped") else ENDED


class OfCelery(Kind):
    """Celery's tasks; their messages are acknowledged late."""

    name, module = "celery", celery

    def __init__(self, desk: celerys.Desk) -> None:
        super().__init__()
        self.desk = desk
        self.queue: list[Any] = []
        self.last: Any = None

    def task(self, key: str | None, **options: Any) -> Any:
        @celery.locked_task(key, **options)
        def work(value):
            return self.body(value)

        name = f"desk.{uuid.uuid4().hex}"
        self.made = self.desk.task(work, base=celery.LockedTask, acks_late=True, name=name)
        return self.made

    def send(self, task: Any, value: object = 1) -> str:
        sent = task.delay(value)
        self.queue += self.desk.messages()
        return getattr(sent, "id", "")

    def call(self, task: Any, value: object = 1) -> Any:
        return task(value)

    def waiting(self) -> int:
        self.queue += self.desk.messages()
        return len(self.queue)

    def run(self) -> str:
        self.waiting()
        self.last = self.queue.pop(0)
        return self._execute()

    def copy(self) -> str:
        return self._execute(redelivered=True)

    def stored(self) -> Any:
        found = self.desk.app.AsyncResult(self.last.headers["id"])
        return found.state, found.result

    def broken(self) -> AbstractContextManager[object]:
        return patch.object(type(self.desk.app), "send_task", fail)

    def unmark(self, task: Any, args: Any) -> None:
        task.unmark(args)

    def name_of(self, task: Any) -> str:
        return str(task.name)

    def run_name(self, task: Any) -> str:
        return f"run:{task.name}:{self.last.headers[HEADER]['message']}"

    def _execute(self, *, redelivered: bool = False) -> str:
        before = len(self.log), self.waiting()
        done = self.desk.execute(self.last, redelivered=redelivered)
        failed = done.info is not None and done.info.state == states.FAILURE
        return self._outcome(before, done.info.retval if failed else done.retval, failed=failed)


class OfDjango(Kind):
    """Django's tasks, whose functions are plain."""

    name = "tasks"

    def __init__(self, desk: Any) -> None:
        from django_redlock import tasks

        super().__init__()
        self.desk, self.module = desk, tasks
        self.last = ""

    def function(self) -> Callable[..., Any]:
        """The function of a task."""

        def work(value):
            return self.body(value)

        return work

    def task(self, key: str | None, **options: Any) -> Any:
        from django.tasks import task

        function: Any = self.function()
        function.__module__ = made.__name__
        function.__name__ = function.__qualname__ = f"work_{uuid.uuid4().hex}"
        locked = self.module.locked_task(key, **options)(function)
        vars(made)[function.__name__] = self.made = task(locked)
        return self.made

    def send(self, task: Any, value: object = 1) -> str:
        return str(getattr(task.enqueue(value), "id", ""))

    def call(self, task: Any, value: object = 1) -> Any:
        return task.call(value)

    def waiting(self) -> int:
        return int(self.desk.rows(status="READY").count())

    def run(self) -> str:
        self.last = str(self.desk.rows(status="READY").first().id)
        return self._work()

    def copy(self) -> str:
        assert self.desk.rows(id=self.last).update(status="READY") == 1
        return self._work()

    def stored(self) -> Any:
        row = self.desk.rows(id=self.last).get()
        return row.status, row.return_value

    def broken(self) -> AbstractContextManager[object]:
        return patch("django_tasks_db.backend.DatabaseBackend._task_to_db_task", fail)

    def unmark(self, task: Any, args: Any) -> None:
        self.module.unmark(task, args)

    def name_of(self, task: Any) -> str:
        return str(task.module_path)

    def run_name(self, task: Any) -> str:
        row = self.desk.rows(id=self.last).get()
        header = row.args_kwargs["kwargs"].get("redlock_message", {})
        return f"run:{task.module_path}:{header.get('message', self.last)}"

    def _work(self) -> str:
        row = self.desk.rows(id=self.last).get()
        row.claim("worker")
        before = len(self.log), self.waiting()
        self.desk.worker().run_task(row)
        row.refresh_from_db()
        failed = row.status == "FAILED"
        told = row.task_result.errors[0].exception_class if failed else row.return_value
        return self._outcome(before, told, failed=failed)


class OfDjangoAsync(OfDjango):
    """Django's tasks, whose functions are coroutine functions."""

    name = "async tasks"

    def function(self) -> Callable[..., Any]:
        async def work(value):
            return await sync_to_async(self.body)(value)

        return work


# Django 6 has tasks.
IS_NEW: Final = bool(find_spec("django.tasks") and find_spec("django_tasks_db"))
NAMES: Final = [OfCelery.name, *([OfDjango.name, OfDjangoAsync.name] if IS_NEW else [])]


def fail(*_: object, **__: object) -> None:
    """Be a queue that is down; what it was to be given is marked by then."""
    assert celerys.marked()
    raise OSError("down")


@contextmanager
def no_majority() -> Iterator[None]:
    """Three of five nodes are down."""
    celerys.memory().down = {0, 1, 2}
    try:
        yield
    finally:
        celerys.memory().down = set()


def elsewhere(call: Callable[[], Any]) -> Any:
    """Call it as another worker does: where nothing is held."""
    return Context().run(call)
