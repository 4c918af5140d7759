"""What becomes of a message whose key is held, and of one that is delivered again; no worker."""

from __future__ import annotations

import gc
import json
import math
import pickle
import uuid
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import Any
from unittest.mock import Mock, patch

import pytest
from celery.app.trace import ExceptionInfo
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded, WorkerLostError
from celery.worker.request import Request
from kombu.exceptions import OperationalError

from django_redlock import LeaseLost, LockTaken, current_lease, redlock
from django_redlock.celery import LockedTask, Skipped, locked_task
from django_redlock.celery import task as task_module
from django_redlock.celery.publishing import HEADER
from django_redlock.celery.run import ATTRIBUTE, CeleryRun
from django_redlock.leases.lease import Lease
from django_redlock.work.run import record
from tests.support.listening import Told, told

from .desk import Desk, Work, hold, is_free, is_ignored, label_of, locked, memory, nothing, sent

__all__ = ["told"]

# -- a message that is refused -----------------------------------------------------------------


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
    message.headers["x-death"] = [{"queue": "celery_delayed_0"}]  # RabbitMQ drops it for that
    with hold("name"):
        done = desk.execute(message)
    assert done.info.state == "RETRY"
    again = desk.only()
    kept = ("id", "task", "retries", "expires", "group", "group_index", "root_id", "timelimit")
    assert {key: again.headers[key] for key in kept} == {key: message.headers[key] for key in kept}
    assert again.decode() == message.decode()
    assert again.headers["tenant"] == "a"
    assert "x-death" not in again.headers
    assert again.properties["priority"] == 4
    assert again.headers["eta"] is not None
    assert desk.execute(again).retval == 5


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
    monkeypatch.setattr(desk.app, "send_task", Mock(side_effect=OperationalError("no broker")))
    with hold("name"):
        info = desk.execute(message).info
    assert type(info.retval).__name__ == kind
    assert getattr(info.retval, "requeue", True) is True


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


# -- a message that may have run ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "task_id", "on", "is_own"),
    [
        ("worker-1:1:mine", "mine", 5, True),
        ("worker-1:1:mine", "mine", 1, True),  # where remains of others outvote our earlier run
        ("web-1:7", "7", 5, False),  # a duplicate of what process 7 does
        ("web-1:7:7", "7", 5, True),
    ],
)
def test_a_run_that_finds_its_own_task_id_waits(desk, label, task_id, on, is_own):
    """One vote for its own id is enough: the message comes back, where a new one is skipped."""
    message = sent(desk, desk.task(locked("skip")), task_id=task_id)
    with hold("name", label):
        for node in memory().nodes[on:]:
            node.keys["redlock:lock:name"] = (f"{'f' * 32}:1:other:1:theirs", None)
        done = desk.execute(message)
    if is_own:
        again = desk.only()
        assert (done.info.state, again.headers["id"]) == ("RETRY", task_id)
    else:
        assert done.retval["skipped"] is True


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


# -- a copy, where Celery drops copies ---------------------------------------------------------


COPY = {HEADER: {"again": True}}  # the mark of a message that waited for its own earlier run


def twice(desk: Desk, body: Callable[..., Any], **options: Any) -> list[str]:
    """The states of a message and of a copy of it that comes later."""
    task = desk.task(body, **({"acks_late": True} | options))
    task_id = uuid.uuid4().hex  # all desks of a process store their results in one place
    messages = [sent(desk, task, task_id=task_id, headers=each) for each in ({}, COPY)]
    done = [desk.execute(message).info for message in messages]
    return [info.state if info else "SUCCESS" for info in done]


@pytest.mark.parametrize(
    ("told", "options"),
    [(False, {}), (True, {"acks_late": False}), (True, {"ignore_result": True})],
    ids=["not told", "acknowledged early", "no result"],
)
def test_a_copy_runs_under_every_other_setting(desk, told, options):
    """Without the setting, late acknowledgement and a stored success, a copy runs."""
    desk.app.conf.worker_deduplicate_successful_tasks = told
    assert twice(desk, locked("skip"), **options) == ["SUCCESS", "SUCCESS"]


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
    read = Mock(side_effect=[ConnectionError("no results"), SoftTimeLimitExceeded()])
    monkeypatch.setattr(desk.app.backend, "get_task_meta", read)
    desk.app.conf.worker_deduplicate_successful_tasks = True
    task = desk.task(locked("skip"), acks_late=True)
    assert desk.execute(sent(desk, task, task_id="copy", headers=COPY)).retval == "name"
    assert "[copy] may run a second time" in caplog.text
    assert desk.execute(sent(desk, task, task_id="copy", headers=COPY)).info.state == "FAILURE"
    assert is_free("name")


# -- a child that was killed ------------------------------------------------------------------


@pytest.mark.parametrize("rejects", [False, True], ids=["acks_late alone", "reject_on_worker_lost"])
def test_acks_late_alone_acknowledges_the_message_of_a_killed_child(desk, *, rejects):
    """As the worker does that loses a child: the message is gone; rejected, it comes back."""
    did: list[str] = []
    task = desk.task(locked("skip"), acks_late=True, reject_on_worker_lost=rejects)
    message = sent(desk, task)
    request = Request(
        message,
        app=desk.app,
        task=task,
        decoded=False,
        on_ack=lambda *_: did.append("acknowledged"),
        on_reject=lambda *_: did.append("rejected"),
    )
    try:
        raise WorkerLostError("signal 9")  # noqa: TRY301 - as the pool of workers does
    except WorkerLostError:
        request.on_failure(ExceptionInfo())
    assert did == ["rejected" if rejects else "acknowledged"]


# -- a copy after the run ----------------------------------------------------------------------


@pytest.mark.parametrize("track_started", [False, True])
@pytest.mark.parametrize(("says", "state"), [("done", "SUCCESS"), (ValueError(), "FAILURE")])
def test_a_copy_of_what_has_finished_does_not_run(desk, says, state, track_started):
    """It ends without its body, and the stored result stays as it is."""
    work = Work(desk, says, track_started=track_started)
    work.run()
    result = repr(desk.app.AsyncResult(work.message.headers["id"]).result)
    for _ in range(2):
        assert is_ignored(work.copy())
        assert (work.begun, work.state) == (1, state)
    assert repr(desk.app.AsyncResult(work.message.headers["id"]).result) == result
    assert desk.messages() == []
    assert is_free("key")


@pytest.mark.parametrize(
    ("says", "options"),
    [
        (SystemExit(1), {}),
        (Ignore(), {}),
        (Reject("later", requeue=True), {}),
        (ValueError(), {"acks_on_failure_or_timeout": False}),
    ],
    ids=["exit", "ignored", "given back", "to a dead-letter queue"],
)
def test_a_copy_of_what_has_not_finished_runs(desk, says, options):
    """It left no record and no name; an operator may send what is in a dead-letter queue."""
    work = Work(desk, says, **options)
    with suppress(Reject):
        work.run()
    assert is_free(work.name)
    assert is_free("key")
    assert work.copy().info is None
    assert (work.begun, work.state) == (2, "SUCCESS")


# Celery warns of it, and warnings are errors in these tests.
outside = pytest.mark.filterwarnings("ignore:Exception raised outside body")


@outside
def test_a_copy_of_what_was_not_stored_runs(desk):
    """Where the result could not be stored, nothing is recorded, though the body has ended."""
    work = Work(desk)
    run_unstored(work)
    assert is_free(work.name)
    work.copy()
    assert work.begun == 2


def run_unstored(work: Work) -> None:
    """Execute its message while the result backend is down."""
    refuse = Mock(side_effect=RuntimeError("down"))
    backend = work.desk.app.backend
    down = patch.multiple(backend, mark_as_done=refuse, mark_as_failure=refuse)
    with down, suppress(RuntimeError):
        work.run()


@outside
def test_a_record_that_waits_for_nothing_is_caught(desk, monkeypatch):
    """Broken: the record is written when the body has ended. What was not stored never runs."""
    work = Work(desk)
    with monkeypatch.context() as broken:
        broken.setattr(CeleryRun, "end", lambda run, **_: record(run.lease, 60))
        run_unstored(work)
    work.copy()
    assert (work.begun, work.state) == (1, "PENDING")


def with_handlers(**handlers: Callable[..., None]) -> Any:
    """A base class of tasks that have these handlers."""
    return type("Own", (LockedTask,), {"abstract": True, **handlers})


def test_handlers_need_not_call_the_base_class(desk):
    """The run lives until its own ``on_success`` and ``after_return`` have ended."""
    seen: list[Any] = []

    def look(*_: object) -> None:
        met = Context().run(work.copy)
        seen.append((is_free("key"), is_free(work.name), current_lease(), is_ignored(met)))

    work = Work(desk, base=with_handlers(on_success=look, after_return=look))
    work.run()
    assert seen == [(True, False, None, True)] * 2  # the key is free then, the run name is not
    assert len(desk.messages()) == 2  # and copies that met it come back
    assert is_ignored(work.copy())
    assert work.begun == 1


def test_what_was_recorded_nowhere_is_told(desk, caplog):
    """The run loses its names before the end: the log says that it may run again."""

    def lose() -> None:
        for node in memory().nodes:
            node.keys.clear()

    work = Work(desk, lose)
    work.run()
    assert "would run again" in caplog.text
    work.copy()
    assert work.begun == 2


# -- a copy beside the run ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("track_started", "flag", "lock"),
    [
        (False, True, {"on_conflict": "skip"}),
        (True, True, {"on_conflict": "retry"}),
        (False, False, {"on_conflict": "raise"}),
        (False, True, {"wait": math.inf}),  # a record wakes nobody
    ],
)
def test_a_copy_waits_while_the_run_lives(desk, track_started, flag, lock):
    """It is sent again with the number of the message, and leaves the state as it is."""
    met: list[Any] = []

    def meet() -> None:
        met.append(Context().run(work.run, redelivered=flag))
        met.append(work.state)

    work = Work(desk, meet, track_started=track_started, lock=lock)
    work.run()
    assert is_ignored(met[0])
    assert met[1] == ("STARTED" if track_started else "PENDING")
    again = desk.only()
    assert again.headers["id"] == work.message.headers["id"]
    assert again.headers[HEADER].items() >= {"message": work.number, "again": True}.items()
    assert again.headers["eta"] is not None
    assert is_ignored(work.run(again))
    assert (work.begun, work.state) == (1, "SUCCESS")


def test_a_copy_that_would_store_started_is_caught(desk, monkeypatch):
    """Broken: Celery stores STARTED before the grant. A copy turns FAILURE into it for ever."""
    monkeypatch.setattr(task_module, "take_over_started", lambda _: None)
    work = Work(desk, ValueError(), track_started=True)
    work.run()
    work.copy()
    assert work.state == "STARTED"


# -- what is a copy ----------------------------------------------------------------------------


def test_a_second_message_with_the_same_task_id_runs(desk):
    """A task id that is used on purpose, again and again, says nothing of what has finished."""
    work = Work(desk)
    for count in (1, 2):
        message = sent(desk, work.task, task_id="nightly")
        assert work.run(message, redelivered=True).info is None
        assert work.begun == count


def test_a_retry_is_a_new_message(desk):
    """The message that published it has finished; the retry runs, and is told by its own number."""

    def again() -> None:
        raise work.task.retry(countdown=0)

    work = Work(desk, again)
    work.run()
    assert work.state == "RETRY"
    retry = desk.only()
    assert retry.headers[HEADER]["message"] != work.number
    assert is_ignored(work.copy())
    assert work.run(retry).info is None
    assert (work.begun, work.state) == (2, "SUCCESS")
    assert is_ignored(work.run(retry, redelivered=True))


@pytest.mark.parametrize("number", [None, 7, "", "a b", "x" * 65, "\x00", ["a"], {}])
def test_a_message_without_a_number_is_as_it_was(desk, number):
    """What ``send_task`` sends, or anybody writes, has no run name; it runs and runs again."""
    work = Work(desk)
    work.message.headers[HEADER] = {"message": number}
    for count in (1, 2):
        assert work.copy().info is None
        assert work.begun == count


def test_a_body_that_calls_itself_is_one_run(desk):
    """A nested call of another key takes that key and no second run name."""
    seen: list[Any] = []

    @locked_task("{key}", on_conflict="raise")
    def work(key: str) -> None:
        lease = current_lease()
        assert lease is not None
        seen.append(lease.names)
        if key == "a":
            work("b")

    task = desk.task(work, base=LockedTask, acks_late=True)
    message = sent(desk, task, "a")
    desk.execute(message)
    assert seen == [("a",), ("b",)]
    assert is_free("a")


def test_a_record_lives_longer_than_the_broker_waits(desk):
    """It stays for the visibility timeout and a minute more, whatever MAX_TTL is."""
    desk.app.conf.broker_transport_options = {"visibility_timeout": 7200}
    work = Work(desk)
    work.run()
    for node in memory().nodes:
        assert "done::" in str(node.get(f"redlock:lock:{work.name}"))
        assert 7250 < node.pttl(f"redlock:lock:{work.name}") / 1000 <= 7260


def test_started_is_stored_after_the_grant(desk):
    """A task with ``track_started`` shows that it runs, when it does."""
    states: list[str] = []

    def look() -> None:
        states.append(work.state)

    work = Work(desk, look, track_started=True)
    with hold("key"):
        work.run()
        states.append(work.state)
    work.run(desk.only())
    assert states == ["RETRY", "STARTED"]


def test_an_interruption_before_the_body_leaves_nothing_taken(desk, monkeypatch):
    """A time limit between the grants and the body ends with both names free."""
    work = Work(desk)
    monkeypatch.setattr(CeleryRun, "begin", Mock(side_effect=SystemExit))
    work.run()
    assert work.begun == 0
    assert is_free("key")
    assert is_free(work.name)


def test_run_name_and_key_have_a_nonce_each(desk):
    """So no wake-up, undo or record that one of them sends is taken for the other's."""
    seen: list[set[str]] = []

    def look() -> None:
        for node in memory().nodes:
            values = [str(node.get(f"redlock:lock:{name}")) for name in ("key", work.name)]
            seen.append({value.partition(":")[0] for value in values})

    work = Work(desk, look)
    work.run()
    assert seen
    assert all(len(nonces) == 2 for nonces in seen)


def test_a_run_name_is_renewed_whatever_the_key_has(desk):
    """Storing the result may take longer than the ttl."""
    seen: list[float] = []

    def look(task: Any, *_: object) -> None:
        seen.append(vars(task.request)[ATTRIBUTE].lease.renew_at)

    Work(desk, base=with_handlers(on_success=look), lock={"renew": False}).run()
    (renew_at,) = seen
    assert renew_at < math.inf


@pytest.mark.parametrize("refused", ["held", "down"])
def test_who_listens_is_told_of_the_key_and_not_of_the_run_name(desk, told: Told, refused):
    """A copy that meets its run, and a message without a majority, are told with the key's name."""

    def meet() -> None:
        Context().run(work.copy)

    work = Work(desk, meet)
    if refused == "down":
        memory().down = {0, 1, 2}
        work.run()
        memory().down = set()
        assert [(each.kind.name, each.name) for each in told] == [("UNAVAILABLE", "key")]
    else:
        work.run()
        kinds = ("ACQUIRED", "REFUSED", "RELEASED")
        assert [(each.kind.name, each.name) for each in told] == [(kind, "key") for kind in kinds]


@pytest.mark.parametrize("lose", ["revoked", "deleted"])
def test_a_run_name_that_is_lost_leaves_nothing(desk, caplog, recwarn, lose):
    """A renewal finds out, and the log says why. The name is free then, and a copy runs."""

    def body() -> None:
        if lose == "revoked":
            redlock.revoke(work.name, reason="run it again")
        else:
            for node in memory().nodes:
                node.keys.pop(f"redlock:lock:{work.name}")
        run = vars(work.task.request)[ATTRIBUTE]
        with pytest.raises(LeaseLost):
            run.lease.extend()

    work = Work(desk, body, nothing)
    work.run()
    assert "has left no record: " in caplog.text
    assert ("it was revoked (" in caplog.text) == (lose == "revoked")
    assert ("run it again" in caplog.text) == (lose == "revoked")
    assert is_free(work.name)
    gc.collect()
    assert not [each for each in recwarn if work.name in str(each.message)]
    work.copy()
    assert work.begun == 2


def test_a_revoke_that_some_nodes_have_not_heard_is_told(desk, caplog):
    """One record ends a copy: the log says that it stays there."""

    def revoke() -> None:
        memory().down = {2}
        redlock.revoke(work.name)
        memory().down = set()

    work = Work(desk, revoke)
    work.run()
    assert "has left a record on 1 nodes that were not told: it was revoked (" in caplog.text


def test_an_interruption_at_the_end_is_made_up_for(desk, monkeypatch):
    """A time limit between the storage and the record: the record is written all the same."""
    times: list[Lease] = []

    def interrupted(lease: Lease, life: float) -> bool:
        times.append(lease)
        if len(times) == 1:
            raise SoftTimeLimitExceeded
        return record(lease, life)

    monkeypatch.setattr("django_redlock.work.run.record", interrupted)
    work = Work(desk)
    with suppress(SoftTimeLimitExceeded):
        work.run()
    assert [lease.ended for lease in times] == [True, True]
    assert is_ignored(work.copy())
    assert work.begun == 1
