"""``@locked_task`` and ``LockedTask``: what they take, and what a call is that has no message."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from typing import Any

import pytest
from celery import Celery, _state, shared_task
from celery.exceptions import SoftTimeLimitExceeded
from celery.local import PromiseProxy, Proxy

from django_redlock import LockTaken, NodesUnavailable
from django_redlock.celery import LockedTask, locked_task
from django_redlock.leases import context
from django_redlock.work.arguments import digest
from django_redlock.work.plan import ATTRIBUTE, OF_DJANGO, Plan, plan_of

from .desk import held_name, hold, is_free, locked, memory, sent

# -- decorating --------------------------------------------------------------------------------


def untouchable() -> Any:
    """What a lazy task would be made of."""
    raise AssertionError("the lazy task was evaluated")


@pytest.mark.parametrize("kind", [Proxy, PromiseProxy])
@pytest.mark.parametrize("decorate", [locked_task, locked_task(), locked_task("name")])
def test_the_wrong_order_is_found_without_touching_the_lazy_task(kind, decorate):
    """A task in place of a function is a TypeError that says what to write instead."""
    with pytest.raises(TypeError, match=r"(?s)below:.*@shared_task\n +@locked_task") as error:
        decorate(kind(untouchable))
    assert "lazy" not in str(error.value)


def test_the_wrong_order_is_found_above_every_way_to_make_a_task(desk):
    """@shared_task, @app.task and a task that is real already are told from functions."""

    def work():
        return None

    lazy = desk.app.task(work, name="desk.lazy", shared=False)
    for task in (shared_task(work, name="desk.shared"), lazy, desk.task(work)):
        with pytest.raises(TypeError, match="is above @shared_task"):
            locked_task("name")(task)
    assert not lazy.__evaluated__()


def generator() -> Iterator[None]:
    """A body that runs when somebody iterates."""
    yield


async def coroutine() -> None:
    """A body that runs when somebody awaits."""


async def asynchronous_generator() -> AsyncIterator[None]:
    """Both."""
    yield


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (locked_task("name")(lambda: None), "has @locked_task already"),
        (generator, "generator function"),
        (asynchronous_generator, "generator function"),
        (coroutine, "coroutine function"),
        (LockedTask, "of a task class, its 'run'"),
        (42, "decorates a function"),
    ],
)
def test_what_has_no_body_to_lock_is_refused(function, why):
    """A function whose body runs after its return, a class, or no function is a TypeError."""
    with pytest.raises(TypeError, match=why):
        locked_task()(function)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"mode": "until_executed"}, "none of 'while_running', 'until_started', 'until_finished'"),
        ({"on_unavailable": "skip"}, "none of 'retry', 'run', 'raise'"),
        ({"on_duplicate": "skip", "mode": "until_finished"}, "none of 'existing', 'raise', 'drop'"),
        ({"on_duplicate": "existing"}, "no effect with mode='while_running'"),
        ({"queue_ttl": 60}, "no effect with mode='while_running'"),
        ({"using": "default"}, "no effect with mode='while_running'"),
        ({"queue_ttl": 0, "mode": "until_finished"}, "queue_ttl must be more than 0"),
        ({"mode": "until_started"}, "write on_conflict='retry'"),
        ({"on_conflict": "ignore"}, "none of 'skip', 'retry', 'raise'"),
        ({"ttl": -1}, "ttl must be more than 0"),
        ({"key": "report:{nothing}"}, "parameters are: report_id"),
        ({"key": "report:{self.request.id}"}, "parameters are: report_id"),
        ({"key": "report:\n"}, "control characters"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_when_decorating(arguments, why):
    """A wrong mode, policy, time or field is a ValueError that says what there is."""

    def build(self, report_id):
        return None

    with pytest.raises(ValueError, match=why):
        locked_task(**arguments)(build)


def test_a_keyword_that_there_is_not_is_named():
    """With those that there are, and the page of other clients' keywords."""
    wrong: dict[str, Any] = {"timeout": 60}
    text = r"has no keyword 'timeout': write ttl= or wait=; it takes key, .*, limit\. .*/migrate"
    with pytest.raises(TypeError, match=text):
        locked_task("name", **wrong)


def test_a_field_of_the_task_is_refused_whatever_it_is_called(desk):
    """bind=True is known at the call: the task under another name than self is no field either."""

    @locked_task("report:{me.name}")
    def build(me):
        return held_name()

    with pytest.raises(ValueError, match="parameters are: none"):
        desk.task(build, bind=True).apply().get()


# -- called, and eager -------------------------------------------------------------------------


def test_a_direct_call_is_locked_too(desk):
    """Called as a function, decorated or as a task, the body runs under the lock."""
    work = locked("skip")
    assert work() == desk.task(work)() == "name"
    with hold("name"):
        for duplicate in (work, desk.task(work)):
            assert duplicate()["skipped"] is True
    assert desk.messages() == []


@pytest.mark.parametrize("on_conflict", ["retry", "raise"])
def test_who_cannot_come_back_is_told(desk, on_conflict):
    """Called directly or eagerly there is no message to send again: LockTaken, at once."""
    task = desk.task(locked(on_conflict), max_retries=0)
    with hold("name"):
        with pytest.raises(LockTaken):
            task()
        assert task.apply().state == "FAILURE"
        with pytest.raises(LockTaken):
            task.apply(throw=True)
    assert task.apply().get() == "name"


def test_a_direct_call_with_none_is_locked_by_it(desk):
    """No task is at work, and None is an argument as others are."""

    @locked_task("report:{report_id!r}")
    def build(report_id):
        return held_name()

    assert build(None) == "report:None"


@pytest.mark.parametrize("on_conflict", ["skip", "retry", "raise"])
def test_a_direct_call_without_nodes_is_an_error(desk, on_conflict):
    """Nobody knows whether the name is free: that is never a Skipped."""
    memory().down = {0, 1, 2}
    with pytest.raises(NodesUnavailable):
        locked(on_conflict)()


def test_the_lock_is_free_after_a_body_that_failed(desk):
    """An error of the body releases the lease, and so does Celery's soft time limit."""

    @locked_task("name")
    def work(number):
        raise (ValueError, SoftTimeLimitExceeded)[number]

    for number in range(2):
        with pytest.raises((ValueError, SoftTimeLimitExceeded)):
            desk.task(work).apply((number,)).get()
        assert is_free("name")


# -- the base class ----------------------------------------------------------------------------


def test_a_base_class_locks_a_function(desk):
    """LockedTask with ``lock`` is the decorator, told the same; an empty one is the default key."""

    def build(report_id):
        return held_name()

    task = desk.task(build, base=LockedTask, lock={"key": "report:{report_id}", "ttl": 20})
    assert task.apply((7,)).get() == "report:7"
    with hold("report:7"):
        assert desk.execute(sent(desk, task, 7)).retval["skipped"] is True

    def other(self, report_id):
        return held_name()

    bound = desk.task(other, base=LockedTask, bind=True, lock={})
    assert bound.apply((7,)).get() == f"task:desk.other:{digest({'report_id': 7})}"


class Walks:
    """What a task gets its ``run`` from, and knows no lock."""

    def run(self, account):
        return held_name()


SAYS = r"desk\.sync has the base LockedTask, and nothing says what it locks: write @locked_task\("
UNSAID: dict[str, tuple[dict[str, Any], str]] = {
    "nothing at all": ({}, SAYS),
    "celery-once": (
        {"once": {"keys": ["account"]}},
        r"LockedTask has no keyword 'once=\{…\}'; it takes .*/migrate",
    ),
    "celery-singleton": ({"unique_on": ["account"]}, "no keyword 'unique_on'; .*/migrate"),
    "when it is a duplicate": ({"raise_on_duplicate": True}, "no keyword 'raise_on_duplicate'"),
    "an option of the decorator": (
        {"mode": "until_finished"},
        r"mode= is an option of @locked_task, and Celery uses it for nothing: write it there",
    ),
}


@pytest.mark.parametrize("decorated", [False, True], ids=["alone", "with @locked_task"])
@pytest.mark.parametrize("options", UNSAID)
def test_a_base_class_alone_is_refused(desk, options, decorated):
    """So are options that nobody reads, as those of another package: nothing would be locked."""
    given, text = UNSAID[options]

    def sync(account):
        return held_name()

    if decorated:
        sync = locked_task("sync:{account}")(sync)
        if not given:
            assert desk.task(sync, base=LockedTask).apply((7,)).get() == "sync:7"
            return
    with pytest.raises(TypeError, match=text):
        desk.task(sync, base=LockedTask, **given)


def test_the_decorator_for_djangos_tasks_is_refused_at_the_definition(desk):
    """Its runs would remove no mark, so nothing more would be sent for an hour."""

    def sync(account):
        raise AssertionError("it runs")

    vars(sync)[ATTRIBUTE] = Plan(sync, "sync:{account}", mode="until_finished", owner=OF_DJANGO)
    with pytest.raises(TypeError, match=r"desk\.sync has .* import it from django_redlock\.celery"):
        desk.task(sync, base=LockedTask)


def test_a_class_whose_run_is_not_its_own_is_refused_as_well(desk):
    """It would run without a lock; with ``lock`` it has one. Its subclass inherits that."""
    with pytest.raises(TypeError, match="Sync has the base LockedTask, and nothing says"):
        type("Sync", (Walks, LockedTask), {})
    with pytest.raises(TypeError, match=r"has no keyword 'once=\{…\}'"):
        type("Sync", (LockedTask,), {"run": Walks.run, "once": {}, "lock": {"key": "x"}})
    base: Any = type("Sync", (Walks, LockedTask), {"lock": {"key": "sync:{account}"}})
    child = type("Sync", (base,), {"name": "desk.sync"})
    assert desk.app.register_task(child()).apply((7,)).get() == "sync:7"
    own = type("Sync", (base,), {"name": "desk.own", "run": lambda self, account: held_name()})
    assert desk.app.register_task(own()).apply((7,)).get() == "sync:7"


def test_an_application_may_have_it_as_the_base_of_all_tasks(desk, monkeypatch):
    """Celery's own tasks are as they were; those of others are locked by all their arguments."""
    own = {each for each in _state._on_app_finalizers if each.__module__ == "celery.app.builtins"}
    monkeypatch.setattr(_state, "_on_app_finalizers", own)  # without the shared ones of other tests
    with closing(
        Celery("all", task_cls=LockedTask, broker="memory://", set_as_current=False)
    ) as app:
        assert app.tasks
        assert all(plan_of(task.run) is None for task in app.tasks.values())
        others = app.task(held_name, name="others.sync", lazy=False, shared=False)
        assert plan_of(others.run) is not None


def test_the_base_class_and_the_decorator_lock_once(desk):
    """Under base=LockedTask the decorated function is not locked again; twice is refused."""

    @locked_task("name")
    def work():
        return held_name(), len(context.leases())

    task = desk.task(work, base=LockedTask)
    assert task.apply().get() == ("name", 1)
    assert task.delay().id == desk.only().headers["id"]
    with pytest.raises(TypeError, match="both 'lock' and @locked_task"):
        desk.task(work, base=LockedTask, lock={"key": "name"}, name="twice")
