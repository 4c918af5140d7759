"""``locked_task`` without a worker: keys, decorating, and what becomes of each kind of message."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import pickle
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import pytest
from celery import Celery, shared_task
from celery.app.trace import trace_task
from celery.exceptions import SoftTimeLimitExceeded
from celery.local import PromiseProxy, Proxy
from django.test import override_settings
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st
from kombu.exceptions import OperationalError

from django_redlock import LockTaken, NodesUnavailable, conf, current_lease, redlock, redlocks
from django_redlock.celery import LockedTask, Skipped, locked_task
from django_redlock.celery.arguments import canonical, digest
from django_redlock.celery.publishing import HEADER
from django_redlock.fanout.memory.group import MemoryNodes
from django_redlock.leases.lease import Lease

NONCE_DIGITS = 32
# Neither a stall in an example nor a slow machine says anything about keys.
patiently = hypothesis(deadline=None, suppress_health_check=[HealthCheck.too_slow])


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


def name_of(desk: Desk, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The name under which a call of a task is locked."""
    return desk.task(locked_task(function)).apply(args, kwargs).get()


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


# -- keys -------------------------------------------------------------------------------------

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@patiently
@given(PLAIN, PLAIN)
def test_two_values_have_one_canonical_form_exactly_if_they_are_one_value(first, second):
    """The canonical form tells apart what JSON tells apart, and nothing else."""
    same = json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)
    assert (canonical(first) == canonical(second)) is same
    assert canonical(json.loads(json.dumps(first))) == canonical(first)


@pytest.mark.slow
@patiently
@given(st.dictionaries(st.text(), PLAIN, max_size=4), st.randoms())
def test_the_order_of_a_dictionary_and_of_a_set_does_not_count(value, chance):
    """Equal dictionaries and sets have one canonical form, whatever their history."""
    items = list(value.items())
    chance.shuffle(items)
    assert canonical(dict(items)) == canonical(value)
    names = [name for name, _ in items]
    assert canonical(set(names)) == canonical(frozenset(sorted(names)))


@dataclass
class Order:
    """An argument of a task that pickles."""

    number: object


@pytest.mark.parametrize(
    "values",
    [
        [1, "1", 1.0, True, "True", b"1", None, "None", decimal.Decimal(1), [1], {1}, {1: 1}],
        ["", [], {}, set(), b"", 0, 0.0, -0.0, False, [[]], [""], {"": ""}],
        [["a", "b"], ["a,b"], ['a","b'], [["a"], "b"], {"a": "b"}, {"a", "b"}],
        [dt.date(2026, 3, 1), dt.datetime(2026, 3, 1, tzinfo=dt.UTC)],
        [Order(1), Order("1"), {"number": 1}, PurePosixPath("a"), "a", uuid.UUID(int=1)],
    ],
)
def test_values_of_different_types_differ(values):
    """1 and "1", and whatever else is written alike, are different arguments."""
    forms = [canonical(value) for value in values]
    assert len(set(forms)) == len(forms)


def test_what_is_not_plain_data_is_refused_without_being_shown():
    """An object's text may hold its address, so no key is made of it; nor is it quoted."""

    class Secretive:
        def __repr__(self) -> str:
            return "hunter2"

    with pytest.raises(TypeError, match=r"no key can be made of a .*Secretive: name the") as error:
        digest({"argument": Secretive()})
    assert "hunter2" not in str(error.value)


def test_arguments_that_contain_themselves_are_refused():
    """Arguments without a bottom are a TypeError that says what to do, and no RecursionError."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TypeError, match=r"contain themselves: name those that matter"):
        digest({"argument": endless})


def test_one_call_has_one_key_however_it_is_written(desk):
    """Positional is keyword, defaults are applied, lists are tuples; ids differ."""

    def build(report, size=3, *rest, flag=False, **more):
        return held_name()

    task = desk.task(locked_task(build))

    def name(*args, **kwargs):
        return task.apply(args, kwargs).get()

    assert name(1) == name(report=1) == name(1, 3) == name(1, size=3, flag=False)
    assert name(1, more=[1, 2], also={}) == name(also={}, more=(1, 2), report=1)
    assert name(1, 2, 3) != name(1, 2, 4)
    different = [name(1), name("1"), name(1, 4), name(1, flag=True), name([1]), name(1, x=1)]
    assert len(set(different)) == len(different)


def test_the_task_itself_is_no_argument(desk):
    """With bind=True the task that the body is told does not count."""

    def build(self, report):
        return held_name()

    bound = desk.task(locked_task(build), bind=True).apply((1,)).get()
    assert bound == f"task:desk.build:{digest({'report': 1})}"


def test_a_default_key_shows_no_argument(desk):
    """Arguments are digested, so neither a key nor a status page shows a password."""

    def login(user, password):
        return held_name()

    name = name_of(desk, login, "ada", password="hunter2")
    assert name == f"task:desk.login:{digest({'user': 'ada', 'password': 'hunter2'})}"


def test_a_long_task_name_is_digested(desk):
    """A task whose name is longer than a lock's may be has a key all the same."""
    name = desk.task(locked_task(held_name), name="n" * 600).apply().get()
    assert len(name) <= 512
    assert name.startswith("task:nnn")


def test_a_template_is_filled_from_the_arguments(desk):
    """As in the core: fields are filled, defaults too, and braces in a value are text."""

    @locked_task("report:{report_id}:{size}")
    def build(report_id, size=3):
        return held_name()

    task = desk.task(build)
    assert task.apply((7,)).get() == "report:7:3"
    assert task.apply(("{x}", "y" * 600)).get().startswith("report:{x}:yyy")


def test_several_names_are_locked_together(desk):
    """A list of templates is a lock of several names, as in the core."""

    @locked_task(["from:{source}", "to:{target}"])
    def move(source, target):
        return held_name()

    assert desk.task(move).apply((1, 2)).get() == ("from:1", "to:2")


# -- decorating -------------------------------------------------------------------------------


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


def test_a_field_of_the_task_is_refused_whatever_it_is_called(desk):
    """bind=True is known at the call: the task under another name than self is no field either."""

    @locked_task("report:{me.name}")
    def build(me):
        return held_name()

    with pytest.raises(ValueError, match="parameters are: none"):
        desk.task(build, bind=True).apply().get()


def test_arguments_are_still_checked_where_the_task_is_sent(desk):
    """The decorated function keeps its signature: a wrong call of delay is a TypeError there."""

    def build(report_id):
        return None

    task = desk.task(locked_task(build))
    with pytest.raises(TypeError, match="report_id"):
        task.delay()
    task.delay(7)
    assert desk.only().decode()[0] == [7]


@pytest.mark.slow
def test_the_core_imports_no_celery():
    """Without Celery installed everything but this module imports."""
    code = (
        "import sys; sys.modules['celery'] = None; import django_redlock, django_redlock.locks\n"
        "try:\n    import django_redlock.celery\n"
        "except ImportError:\n    print('no celery')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "no celery\n"


# -- called, and eager ------------------------------------------------------------------------


def locked(on_conflict: str, **options: Any) -> Callable[..., Any]:
    """A function under the lock "name"."""

    @locked_task("name", on_conflict=on_conflict, **options)
    def work(value=None):
        return value or held_name()

    return work


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


def test_an_eager_duplicate_is_a_success(desk):
    """With task_always_eager a duplicate is skipped as it is in a worker."""
    desk.app.conf.task_always_eager = True
    task = desk.task(locked("skip"))
    with hold("name"):
        result = task.delay()
    assert result.state == "SUCCESS"
    assert result.get()["skipped"] is True
    assert task.delay().get() == "name"


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


def test_the_options_reach_the_lock(desk):
    """alias, ttl, min_hold and renew are the lock's own."""

    @locked_task("name", alias="other", ttl=20, min_hold=10, renew=False)
    def work():
        lease = current_lease()
        return lease and lease.remaining()

    assert 12 < desk.task(work).apply().get() < 20
    assert is_free("name")
    with pytest.raises(LockTaken) as resting:
        redlocks["other"]("name").acquire()
    assert 5 < (resting.value.retry_after or 0) <= 10


# -- in a worker ------------------------------------------------------------------------------


def sent(desk: Desk, task: Any, *args: Any, **options: Any) -> Any:
    """A message of the task, out of the queue."""
    task.apply_async(args, **options)
    return desk.only()


def test_a_duplicate_ends_as_a_success(desk):
    """The result of a skipped message is SUCCESS and plain data without key or holder."""
    task = desk.task(locked("skip"))
    message = sent(desk, task)
    with hold("name"):
        done = desk.execute(message)
    assert done.info is None
    result = desk.app.AsyncResult(message.headers["id"])
    assert (result.state, desk.messages()) == ("SUCCESS", [])
    stored = result.get()
    assert (stored["skipped"], stored["reason"]) == (True, "the key is held")
    assert 20 < stored["retry_after"] <= 30
    assert len(stored) == 3


@pytest.mark.slow
def test_a_message_that_comes_back_has_all_it_had(desk):
    """With "retry" the new message has the id, arguments, chord, links, expiry and retries."""
    task = desk.task(locked("retry"), bind=False, max_retries=0)
    ends = task.si().set(task_id="end")
    message = sent(
        desk,
        task,
        5,
        task_id="mine",
        expires=600,
        retries=2,
        link=ends,
        link_error=ends,
        chord=ends,
        chain=[ends],
        group_id="group",
        group_index=3,
        headers={"tenant": "a"},
        time_limit=9,
        priority=4,
    )
    with hold("name"):
        done = desk.execute(message)
    assert done.info.state == "RETRY"
    again = desk.only()
    kept = ("id", "task", "retries", "expires", "group", "group_index", "root_id", "timelimit")
    assert {key: again.headers[key] for key in kept} == {key: message.headers[key] for key in kept}
    assert again.decode() == message.decode()
    assert again.headers["tenant"] == "a"
    assert again.properties["priority"] == 4
    assert again.headers["eta"] is not None
    assert desk.execute(again).retval == 5


@pytest.mark.slow
def test_waiting_for_a_lock_uses_up_no_retry(desk):
    """However often a message came back, its body has all of max_retries."""
    bodies = []

    @locked_task("name", on_conflict="retry")
    def work(self):
        bodies.append(self.request.retries)
        raise self.retry(countdown=0)

    task = desk.task(work, bind=True, max_retries=2)
    message = sent(desk, task)
    for _ in range(3):
        with hold("name"):
            for _ in range(4):
                desk.execute(message)
                message = desk.only()
        done = desk.execute(message)
        messages = desk.messages()
        message = messages[0] if messages else None
    assert bodies == [0, 1, 2]
    assert message is None
    assert done.info.state == "FAILURE"
    assert "MaxRetriesExceeded" in repr(done.info.retval)
    assert not hasattr(task, "override_max_retries")


def pauses(desk: Desk, message: Any, times: int) -> list[float]:
    """For how long a message that is refused stays away, each time."""
    found = []
    for _ in range(times):
        found.append(desk.execute(message).info.retval.when)
        message = desk.only()
    return found


def test_the_pause_is_half_of_the_time_waited(desk):
    """A message comes back when it has waited half as long again, less some chance."""
    message = sent(desk, desk.task(locked("retry", wait=0)))
    with hold("name"):
        found = pauses(desk, message, 12)
    waited = 0.0
    for pause in found:
        most = max(0.5, waited / 2)
        assert 0.49 * most <= pause <= most + 0.1  # the attempts themselves take some time
        waited += pause
    assert waited > 5


def test_the_pause_ends_with_the_holder(desk):
    """A message does not stay away for longer than the holder has left."""
    message = sent(desk, desk.task(locked("retry", wait=0)))
    message.headers["redlock"] = {"deferred": 9, "again": False, "waited": 1000}
    with hold("name", ttl=4):
        (pause,) = pauses(desk, message, 1)
    assert 1 < pause <= 4


def test_without_a_majority_the_pause_doubles(desk):
    """In an outage no release is near: a message comes back after 1, 2, 4 … s, less some chance."""
    message = sent(desk, desk.task(locked("retry", wait=0)))
    memory().down = {0, 1, 2}
    for number, pause in enumerate(pauses(desk, message, 7)):
        most = min(60, 2**number)
        assert 0.49 * most <= pause <= most


@pytest.mark.parametrize(
    "told", ["12", True, -1, 1e999, pytest.param(10**400, id="huge"), None, [3]]
)
def test_a_header_that_makes_no_sense_is_as_none(desk, told):
    """What anybody may have written into a header cannot keep a message away."""
    message = sent(desk, desk.task(locked("retry", wait=0)))
    message.headers["redlock"] = {"deferred": told, "waited": told}
    with hold("name"):
        (pause,) = pauses(desk, message, 1)
    assert pause <= 0.6


@pytest.mark.parametrize("away", [False, True], ids=["taken", "no majority"])
def test_the_pause_is_shorter_than_the_visibility_timeout(desk, away):
    """A message that waits for its time is not taken for lost by the broker meanwhile."""
    desk.app.conf.broker_transport_options = {"visibility_timeout": 5}
    message = sent(desk, desk.task(locked("retry", wait=0)))
    message.headers["redlock"] = {"deferred": 9, "again": False, "waited": 1000}
    with hold("name"):
        memory().down = {0, 1, 2} if away else set()
        (pause,) = pauses(desk, message, 1)
        memory().down = set()
    assert 1.2 <= pause <= 2.5


@pytest.mark.parametrize("on_conflict", ["skip", "retry", "raise"])
def test_a_run_that_finds_its_own_task_id_waits(desk, on_conflict):
    """Refused by its own id, a message comes back, whatever on_conflict says."""
    message = sent(desk, desk.task(locked(on_conflict)), task_id="mine")
    with hold("name", "worker-1:1:mine"):
        assert desk.execute(message).info.state == "RETRY"
    again = desk.only()
    assert again.headers["id"] == "mine"
    assert desk.execute(again).retval == "name"


def test_one_vote_for_the_own_task_id_is_enough(desk):
    """Where remains of others outvote our earlier run, it is found all the same."""
    nodes = memory().nodes
    message = sent(desk, desk.task(locked("skip")), task_id="mine")
    with hold("name", "worker-1:1:mine"):
        for node in nodes[:4]:
            node.keys["redlock:lock:name"] = (f"{'f' * NONCE_DIGITS}:1:other:1:theirs", None)
        assert desk.execute(message).info.state == "RETRY"


@pytest.mark.parametrize(
    "sign",
    [{"redelivered": True}, {"retries": 1}, {"headers": {HEADER: {"again": True}}}],
    ids=["redelivered", "retried", "deferred"],
)
def test_what_may_have_run_before_is_never_skipped(desk, sign):
    """A redelivered or retried message comes back where a new one is skipped."""
    redelivered = sign.pop("redelivered", False)
    task = desk.task(locked("skip"))
    message = sent(desk, task, **sign)
    with hold("name"):
        assert desk.execute(message, redelivered=redelivered).info.state == "RETRY"
        again = desk.only()
        assert desk.execute(again).info.state == "RETRY"
    assert desk.execute(desk.only()).retval == "name"


@pytest.mark.parametrize(
    ("on_conflict", "state"), [("skip", "SUCCESS"), ("retry", "RETRY"), ("raise", "FAILURE")]
)
def test_without_a_majority_a_message_is_not_taken_for_a_duplicate(desk, on_conflict, state):
    """Nobody knows, so it comes back; then ``on_conflict`` says what becomes of it."""
    message = sent(desk, desk.task(locked(on_conflict)))
    memory().down = {0, 1, 2}
    assert desk.execute(message).info.state == "RETRY"
    memory().down = set()
    again = desk.only()
    with hold("name"):  # back among the living, it has never run: a duplicate like any other
        info = desk.execute(again).info
    assert (info.state if info else "SUCCESS") == state


@pytest.mark.slow
@pytest.mark.parametrize("on_conflict", ["skip", "retry", "raise"])
def test_without_a_majority_on_unavailable_decides(desk, on_conflict):
    """With "raise" it fails, and with "run" its body runs without the lock."""
    failing = sent(desk, desk.task(locked(on_conflict, on_unavailable="raise"), name="a"))
    running = sent(desk, desk.task(locked(on_conflict, on_unavailable="run"), name="b"))
    memory().down = {0, 1, 2}
    assert isinstance(desk.execute(failing).info.retval, NodesUnavailable)
    assert desk.execute(running).retval is None  # the name of the lock that it holds
    memory().down = set()
    assert desk.messages() == []


def test_raise_fails_the_message(desk):
    """With "raise" a task fails with LockTaken, which survives pickle with all it knows."""
    message = sent(desk, desk.task(locked("raise")))
    with hold("name"):
        failed = desk.execute(message).info.retval
    assert isinstance(failed, LockTaken)
    copy = pickle.loads(pickle.dumps(failed))  # noqa: S301 - our own
    assert (copy.name, copy.holder, copy.votes) == ("name", failed.holder, failed.votes)
    assert desk.messages() == []


@pytest.mark.parametrize("throws", [(), (ValueError,)])
def test_a_conflict_is_logged_as_one_line(desk, caplog, throws):
    """An ordinary conflict has no traceback; a LockTaken that the body raises has one."""

    def nested() -> None:
        redlock("other").acquire(wait=0)

    strict = desk.task(locked("raise"), throws=throws)
    careless = desk.task(locked_task("free", on_conflict="raise")(nested))
    with hold("name"), hold("other"), caplog.at_level("INFO", "celery.app.trace"):
        for task in (strict, careless):
            caplog.clear()
            for _ in range(2):  # the first conflict of a process is as the next
                desk.execute(sent(desk, task))
            lines = [each for each in caplog.records if each.name == "celery.app.trace"]
            assert [bool(each.exc_info) for each in lines] == [task is careless] * 2
            assert all("LockTaken" in each.getMessage() for each in lines)


def test_a_refusal_inside_the_body_is_the_bodys_own(desk):
    """A LockTaken of another lock, raised by the body, is an error and no duplicate."""

    @locked_task("name", on_conflict="skip")
    def work():
        with redlock("inner"):
            raise AssertionError

    message = sent(desk, desk.task(work))
    with hold("inner"):
        assert isinstance(desk.execute(message).info.retval, LockTaken)
    assert is_free("name")


@pytest.mark.slow
def test_a_body_that_locks_its_own_key_is_no_redelivery(desk):
    """A body that calls itself with the same key is told so, rather than sent again for ever."""

    @locked_task("name", on_conflict="retry")
    def work():
        return work()

    message = sent(desk, desk.task(work))
    assert isinstance(desk.execute(message).info.retval, LockTaken)
    assert desk.messages() == []


def test_a_locked_function_in_the_body_of_another_task_is_a_direct_call(desk):
    """Only the task whose body a function is may be sent again on its behalf."""
    helper = locked("retry")

    def outer():
        return helper()

    message = sent(desk, desk.task(outer))
    with hold("name"):
        assert isinstance(desk.execute(message).info.retval, LockTaken)
    assert desk.messages() == []


@pytest.mark.slow
@pytest.mark.parametrize(("acks_late", "kind"), [(True, "Reject"), (False, "OperationalError")])
def test_a_message_that_cannot_be_sent_again_is_not_lost_silently(
    desk, acks_late, kind, monkeypatch
):
    """Without a broker the message stays there (acks_late), or the task fails, and says why."""
    task = desk.task(locked("retry"), acks_late=acks_late)
    message = sent(desk, task)

    def fail(*args, **kwargs):
        raise OperationalError("no broker")

    monkeypatch.setattr(desk.app, "send_task", fail)
    with hold("name"):
        info = desk.execute(message).info
    assert type(info.retval).__name__ == kind
    assert getattr(info.retval, "requeue", True) is True


# -- copies of what has succeeded -------------------------------------------------------------

COPY = {HEADER: {"again": True}}  # the mark of a message that waited for its own earlier run


def twice(desk: Desk, body: Callable[..., Any], **options: Any) -> list[str]:
    """The states of a message and of a copy of it that comes later."""
    task = desk.task(body, **({"acks_late": True} | options))
    task_id = uuid.uuid4().hex  # all desks of a process store their results in one place
    messages = [sent(desk, task, task_id=task_id, headers=each) for each in ({}, COPY)]
    done = [desk.execute(message).info for message in messages]
    return [info.state if info else "SUCCESS" for info in done]


def test_a_copy_ends_where_celery_is_told_to_drop_copies_of_a_success(desk):
    """With worker_deduplicate_successful_tasks, a copy that waited ends without its body."""
    ran = []

    @locked_task("name")
    def work():
        ran.append(1)
        return "done"

    desk.app.conf.worker_deduplicate_successful_tasks = True
    assert twice(desk, work) == ["SUCCESS", "IGNORED"]
    assert ran == [1]
    assert is_free("name")


@pytest.mark.parametrize(
    ("told", "options"),
    [(False, {}), (True, {"acks_late": False}), (True, {"ignore_result": True})],
    ids=["not told", "acknowledged early", "no result"],
)
def test_a_copy_runs_under_every_other_setting(desk, told, options):
    """Without the setting, late acknowledgement and a stored success, a copy runs."""
    desk.app.conf.worker_deduplicate_successful_tasks = told
    assert twice(desk, locked("skip"), **options) == ["SUCCESS", "SUCCESS"]


def test_a_new_message_runs_whatever_the_results_say(desk):
    """A message that never waited for its own run is none: its id may be used on purpose."""
    desk.app.conf.worker_deduplicate_successful_tasks = True
    task = desk.task(locked("skip"), acks_late=True)
    for _ in range(2):
        assert desk.execute(sent(desk, task, task_id="daily")).retval == "name"


@pytest.mark.parametrize("state", ["RETRY", "FAILURE"])
def test_a_copy_of_what_has_not_succeeded_runs(desk, state):
    """A copy runs after a run that failed, or that asked for a retry."""

    @locked_task("name")
    def work(self):
        if not (self.request.headers or {}).get(HEADER):
            raise self.retry() if state == "RETRY" else OSError
        return "done"

    desk.app.conf.worker_deduplicate_successful_tasks = True
    assert twice(desk, work, bind=True) == [state, "SUCCESS"]


def test_a_copy_runs_when_results_cannot_be_read(desk, monkeypatch, caplog):
    """What is not known to have succeeded runs, and a soft time limit is no such error."""

    def fail(error):
        def get_task_meta(*args, **kwargs):
            raise error

        monkeypatch.setattr(desk.app.backend, "get_task_meta", get_task_meta)

    desk.app.conf.worker_deduplicate_successful_tasks = True
    task = desk.task(locked("skip"), acks_late=True)
    fail(ConnectionError("no results"))
    assert desk.execute(sent(desk, task, task_id="copy", headers=COPY)).retval == "name"
    assert "[copy] may run a second time" in caplog.text
    fail(SoftTimeLimitExceeded())
    assert desk.execute(sent(desk, task, task_id="copy", headers=COPY)).info.state == "FAILURE"
    assert is_free("name")


# -- labels and results -----------------------------------------------------------------------


def test_a_process_id_is_no_task_id(desk):
    """A task whose id is "7" is a duplicate of what process 7 does, not a copy of its own run."""
    message = sent(desk, desk.task(locked("skip")), task_id="7")
    with hold("name", "web-1:7"):
        assert desk.execute(message).retval["skipped"] is True
    with hold("name", "web-1:7:7"):
        assert desk.execute(message).info.state == "RETRY"


def test_the_key_names_host_process_and_task_id(desk):
    """A run leaves its task id in the keys, so that a redelivered copy knows it."""
    message = sent(desk, desk.task(locked("skip", ttl=9)), task_id="mine")
    labels = []

    @locked_task("name")
    def work():
        labels.append(label_of("name"))

    desk.app.tasks[message.headers["task"]].run = work
    desk.execute(message)
    assert labels == [{redlock_label("desk.work", "mine")}]


def redlock_label(name: str, task_id: str) -> str:
    """Host, process, task and task id."""
    return f"{conf.backend('default').label()}({name}):{task_id}"


@pytest.mark.parametrize("task_id", ["x" * 5000, "a:b", "mine\n", "mïne", "{x}", "-"])
def test_any_task_id_makes_a_label_that_is_known_again(desk, task_id):
    """An id of any length or text ends in at most 200 bytes, and is recognised."""

    @locked_task("name")
    def work():
        return list(label_of("name"))

    task = desk.task(work)
    message = sent(desk, task, task_id=task_id)
    (label,) = desk.execute(message).retval
    assert len(label.encode()) <= 200
    assert label.isprintable()
    with hold("name", label):
        assert desk.execute(message).info.state == "RETRY"
    with hold("name", f"{label}x"):
        assert desk.execute(message).retval["skipped"] is True


def test_a_long_host_name_leaves_room_for_the_task_id(desk, monkeypatch):
    """The host is cut, never the id by which a redelivered copy is known."""
    monkeypatch.setattr(
        "django_redlock.celery.redelivery.process_label", lambda: f"{'h' * 180}:12345"
    )
    found = []

    @locked_task("name")
    def work():
        found.append(label_of("name"))

    desk.task(work).apply(task_id="i" * 64)
    ((label,),) = found
    assert len(label) == 200
    assert label.endswith(f":12345(desk.work):{'i' * 64}")


def test_a_skipped_result_survives_every_serializer():
    """JSON and pickle give back what a Skipped says; it is a dictionary."""
    skipped = Skipped("the key is held", 1.5)
    plain = {"skipped": True, "reason": "the key is held", "retry_after": 1.5}
    copy = pickle.loads(pickle.dumps(skipped))  # noqa: S301 - our own
    assert json.loads(json.dumps(skipped)) == skipped == plain == copy
    assert type(copy) is Skipped


@pytest.mark.slow
def test_nothing_that_is_stored_shows_a_nonce(desk):
    """Neither results, errors nor messages carry the power to release."""
    texts = []
    with hold("name") as lease:
        for on_conflict in ("skip", "retry", "raise"):
            message = sent(desk, desk.task(locked(on_conflict), name=on_conflict))
            desk.execute(message)
            result = desk.app.AsyncResult(message.headers["id"])
            texts += [repr(result.result), str(result.traceback), repr(result._get_task_meta())]
            texts += [f"{each.headers}{each.body}" for each in desk.messages()]
        assert len(texts) == 10
        assert lease.grant.nonce not in "".join(texts)


# -- the base class ---------------------------------------------------------------------------


def test_a_base_class_locks_a_function(desk):
    """LockedTask with ``lock`` is the decorator, told the same; without it, the default key."""

    def build(report_id):
        return held_name()

    task = desk.task(build, base=LockedTask, lock={"key": "report:{report_id}", "ttl": 20})
    assert task.apply((7,)).get() == "report:7"
    with hold("report:7"):
        assert desk.execute(sent(desk, task, 7)).retval["skipped"] is True

    def other(self, report_id):
        return held_name()

    bound = desk.task(other, base=LockedTask, bind=True)
    assert bound.apply((7,)).get() == f"task:desk.other:{digest({'report_id': 7})}"


@pytest.mark.slow
def test_a_task_class_locks_its_run(desk):
    """A class-based task under LockedTask runs under the lock, called or sent."""

    class Build(LockedTask):
        name = "desk.build"
        lock = {"key": "report:{report_id}", "on_conflict": "retry"}  # noqa: RUF012 - as users write

        def run(self, report_id):
            return self.name, held_name()

    task = desk.app.register_task(Build())
    assert task(7) == task.apply((7,)).get() == ("desk.build", "report:7")
    message = sent(desk, task, 7)
    with hold("report:7"):
        assert desk.execute(message).info.state == "RETRY"
    assert desk.execute(desk.only()).retval == ("desk.build", "report:7")


@pytest.mark.slow
def test_autoretry_leaves_waiting_alone(desk):
    """A task with autoretry_for=Exception does not turn a deferred message into a counted retry."""
    task = desk.task(locked("retry"), autoretry_for=(Exception,), max_retries=1)
    message = sent(desk, task)
    with hold("name"):
        for _ in range(3):
            assert desk.execute(message).info.state == "RETRY"
            message = desk.only()
    assert message.headers["retries"] == 0
    assert desk.execute(message).retval == "name"
