"""An application whose messages are executed by hand, for the tests without a worker."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from typing import Any

import pytest
from celery import Celery
from celery.app.trace import trace_task
from celery.exceptions import Ignore
from django.test import override_settings

from django_redlock import LockTaken, conf, current_lease, redlock, redlocks
from django_redlock.celery import LockedTask, locked_task
from django_redlock.celery.publishing import HEADER
from django_redlock.leases.lease import Lease
from django_redlock.nodes.memory import MemoryNodes


class Desk:
    """An application whose messages are executed by hand, as a worker's child does."""

    def __init__(self) -> None:
        self.app = Celery(
            f"desk-{uuid.uuid4().hex}",
            broker="memory://",
            backend="cache+memory://",
            set_as_current=False,
        )
        self.queue = self.app.conf.task_default_queue = f"desk-{uuid.uuid4().hex}"

    def task(self, function: Callable[..., Any], **options: Any) -> Any:
        """The task of a function."""
        options.setdefault("name", f"desk.{function.__name__}")
        return self.app.task(function, lazy=False, shared=False, **options)

    def messages(self) -> list[Any]:
        """Take all messages out of the queue."""
        with self.app.connection_for_read() as connection:
            channel = connection.default_channel
            return list(iter(lambda: channel.basic_get(self.queue, no_ack=True), None))

    def execute(self, message: Any, *, redelivered: bool = False) -> Any:
        """Run a message; what the tracer says of it."""
        args, kwargs, embed = message.decode()
        information = {
            "exchange": "",
            "routing_key": self.queue,
            "priority": message.properties["priority"],
            "redelivered": redelivered,
        }
        request = {**message.headers, **embed, "is_eager": False, "delivery_info": information}
        task = self.app.tasks[message.headers["task"]]
        return trace_task(task, request["id"], args, kwargs, request, app=self.app)

    def only(self) -> Any:
        """The one message there is."""
        (message,) = self.messages()
        return message


@pytest.fixture
def desk() -> Iterator[Desk]:
    """A desk whose locks live on five fresh nodes in memory."""
    nodes = [f"memory://{uuid.uuid4().hex}" for _ in range(5)]
    with override_settings(REDLOCK={"default": {"NODES": nodes}, "other": {"NODES": nodes[:1]}}):
        yield Desk()


def memory() -> MemoryNodes:
    """The nodes of the desk."""
    group = conf.backend("default").group
    assert isinstance(group, MemoryNodes)
    return group


def is_free(name: str) -> bool:
    """Whether a name can be had at once."""
    lease = redlock(name).try_acquire()
    if lease is not None:
        lease.release()
    return lease is not None


def held_name() -> Any:
    """The name of the lock that the running code holds."""
    lease = current_lease()
    return None if lease is None else lease.name


def locked(on_conflict: Any, **options: Any) -> Callable[..., Any]:
    """A function under the lock "name"."""

    @locked_task("name", on_conflict=on_conflict, **options)
    def work(value=None):
        return value or held_name()

    return work


def label_of(name: str, alias: str = "default") -> set[str]:
    """The owner labels in the keys of a name."""
    with pytest.raises(LockTaken) as refused:
        redlocks[alias](name).acquire()
    return {vote.holder for vote in refused.value.votes}


@contextmanager
def hold(name: str, label: str | None = None, ttl: float | None = None) -> Iterator[Lease]:
    """A lease of somebody else: in another context, so that this code does not hold it."""
    lease = Context().run(redlock.using(label=label)(name, ttl=ttl).acquire)
    try:
        yield lease
    finally:
        lease.release()


def sent(desk: Desk, task: Any, *args: Any, **options: Any) -> Any:
    """A message of the task, out of the queue."""
    task.apply_async(args, **options)
    return desk.only()


@pytest.fixture
def transactional(transactional_db: None) -> None:
    """A database whose transactions are committed."""


def marked() -> set[str]:
    """The keys of all marks on a majority of the nodes, without the prefix."""
    nodes = memory().nodes
    keys = {key for node in nodes for key in node.keys if key.startswith("redlock:mark:")}
    there = {key for key in keys if sum(node.get(key) is not None for node in nodes) >= 3}
    return {key.removeprefix("redlock:mark:") for key in there}


def nothing() -> None:
    """Work that is done at once."""


class Work:
    """A task that is acknowledged late, and what its body does: each time what is said next."""

    def __init__(self, desk: Desk, *says: Any, **options: Any) -> None:
        self.desk = desk
        self.says = list(says)
        self.begun = 0
        locking = {"on_conflict": "retry"} | options.pop("lock", {})

        def work(_: Any) -> Any:
            self.begun += 1
            said = self.says.pop(0) if self.says else "done"
            if isinstance(said, BaseException):
                raise said
            return said() if callable(said) else said

        options = {"base": LockedTask, "acks_late": True, "bind": True} | options
        self.task = desk.task(locked_task("key", **locking)(work), **options)
        self.message = sent(desk, self.task)

    @property
    def number(self) -> str:
        """The number of the message."""
        number: str = self.message.headers[HEADER]["message"]
        return number

    @property
    def name(self) -> str:
        """The run name."""
        return f"run:desk.work:{self.number}"

    def run(self, message: Any = None, *, redelivered: bool = False) -> Any:
        """Execute a message as a worker does; a body that dies has no outcome."""
        with suppress(SystemExit):
            return self.desk.execute(message or self.message, redelivered=redelivered)

    def copy(self) -> Any:
        """Execute the message as a worker does to which it is delivered again."""
        return self.run(redelivered=True)

    @property
    def state(self) -> str:
        """What ``AsyncResult`` shows."""
        return str(self.desk.app.AsyncResult(self.message.headers["id"]).state)


def is_ignored(done: Any) -> bool:
    """Whether a message ended without a state."""
    return done.info is not None and isinstance(done.info.retval, Ignore)
