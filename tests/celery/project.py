"""The application and the tasks that test_workers sends messages to.

A worker is started with TEST_BROKER, TEST_RESULTS and TEST_LOCKS in its environment, with
TEST_LOST_AFTER where messages shall be taken for lost, and with TEST_DROP_COPIES where copies of a
message that has succeeded shall be dropped; with TEST_HELD, the name of a lock that the main
process takes before it forks its children, and with TEST_NAIVE where these shall know nothing of
the fork; with TEST_QUORUM, the name of its queue, where that is a quorum queue of RabbitMQ. The
tests, which only send, set the broker in ``app.conf``. What bodies do is written down in a list
beside the results, with times of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

if "TEST_NAIVE" in os.environ:  # a broken variant
    vars(os)["register_at_fork"] = lambda **_: None
    from django_redlock.nodes import background

    vars(background)["_begin_in_child"] = lambda: None

if "TEST_CARELESS" in os.environ:  # a broken variant
    from dev.soak.faults.signals import careless

    careless()

import redis
from celery import Celery, Task
from celery.exceptions import SoftTimeLimitExceeded
from celery.signals import task_postrun, task_prerun, task_success, worker_init, worker_ready
from django.conf import settings

from django_redlock import current_lease, redlock
from django_redlock.celery import LockedTask, locked_task
from django_redlock.leases import lease as leases
from tests.support.waiting import eventually

# Seconds after which the broker takes an unacknowledged message for lost: for workers whose
# messages shall be, and for others, where one that comes back later is unacknowledged until then.
SOON, NEVER = 2, 3600

if "TEST_LOCKS" in os.environ:
    nowhere = {"NODES": [f"redis://127.0.0.1:{port}/0" for port in (1, 2, 3)], "NODE_TIMEOUT": 0.2}
    settings.configure(
        REDLOCK={"default": json.loads(os.environ["TEST_LOCKS"]), "nowhere": nowhere}
    )
    vars(leases)["RENEWALS"] = 20  # a worker that stands still for less than the ttl loses none


app = Celery("tests.celery.project", set_as_current=False)
app.conf.update(
    broker_url=os.environ.get("TEST_BROKER"),
    result_backend=os.environ.get("TEST_RESULTS"),
    broker_transport_options={"visibility_timeout": int(os.environ.get("TEST_LOST_AFTER", NEVER))},
    worker_deduplicate_successful_tasks="TEST_DROP_COPIES" in os.environ,
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=4,
    worker_hijack_root_logger=False,
)


if "TEST_QUORUM" in os.environ:  # RabbitMQ delays messages itself
    app.conf.update(
        task_default_queue=os.environ["TEST_QUORUM"],
        task_default_queue_type="quorum",
        task_default_exchange_type="topic",
    )


def note(what: str, key: str, **more: Any) -> None:
    """Write down what happens to a key now."""
    said = {"what": what, "key": key, "at": time.monotonic(), "pid": os.getpid(), **more}
    with closing(redis.Redis.from_url(app.conf.result_backend)) as client:
        client.rpush("notes", json.dumps(said))


@contextmanager
def noted(task: Task, key: str) -> Iterator[None]:
    """Write down when a body begins and ends."""
    note("begin", key, id=task.request.id, retries=task.request.retries)
    try:
        yield
    except SoftTimeLimitExceeded:
        note("interrupted", key, id=task.request.id)
        raise
    finally:
        note("end", key, id=task.request.id)


@task_prerun.connect
def tell_of_a_copy(task: Task, args: Any, **_: object) -> None:
    """Write down what the broker says that it delivered before."""
    if (task.request.delivery_info or {}).get("redelivered"):
        note("redelivered", str(args[0]), id=task.request.id)


@task_success.connect
def crash_before_the_record(sender: Task, **_: object) -> None:
    """Kill the whole worker when a result is stored, if a test wants it."""
    crash("stored", sender)


@task_postrun.connect
def crash_after_the_record(sender: Task, **_: object) -> None:
    """Kill the whole worker when a run has ended, and is not acknowledged."""
    crash("recorded", sender)


def crash(when: str, task: Task) -> None:
    """Kill this process and its worker, once."""
    if task.name == recorded.name:
        with closing(redis.Redis.from_url(app.conf.result_backend)) as client:
            if client.getdel(f"crash:{when}:{task.request.args[0]}"):
                os.killpg(0, signal.SIGKILL)


@worker_ready.connect
def ready(**_: object) -> None:
    """Say that the worker takes messages."""
    note("ready", "")


@worker_init.connect
def hold(**_: object) -> None:
    """Connect to the nodes and hold a lock, before the children are forked."""
    if "TEST_HELD" in os.environ:
        vars(hold)["lease"] = redlock(os.environ["TEST_HELD"]).acquire()


@app.task(bind=True)
def unlocked(self: Task, key: str, seconds: float) -> str:
    """Work without a lock."""
    with noted(self, key):
        time.sleep(seconds)
    return "done"


@app.task(bind=True, max_retries=0)
@locked_task("work:{key}", on_conflict="retry")
def patient(self: Task, key: str, seconds: float) -> str:
    """Work that comes back later."""
    with noted(self, key):
        time.sleep(seconds)
    return "done"


@app.task(bind=True)
@locked_task("work:{key}")
def skipping(self: Task, key: str, seconds: float) -> str:
    """Work that need not be done twice."""
    with noted(self, key):
        time.sleep(seconds)
    return "done"


@app.task(bind=True)
@locked_task("work:{key}")
def lasting(self: Task, key: str) -> str:
    """Work that need not be done twice, and is done when a test says so."""
    with noted(self, key), closing(redis.Redis.from_url(app.conf.result_backend)) as client:
        eventually(lambda: client.exists(f"enough:{key}"), within=300, every=0.02)
    return "done"


@app.task(bind=True)
def unlocked_lasting(self: Task, key: str) -> str:
    """Work without a lock, for each run until a test says so."""
    return until_told(self, key)


@app.task(bind=True)
@locked_task("work:{key}", on_conflict="raise")
def strict(self: Task, key: str) -> str:
    """Work that must not be asked for twice."""
    with noted(self, key):
        return "done"


@app.task(bind=True)
@locked_task("work:{key}", wait=300, on_conflict="raise")
def waiting(self: Task, key: str) -> str:
    """Work that waits for its turn in its process."""
    with noted(self, key):
        return "done"


@app.task(bind=True, max_retries=2)
@locked_task("work:{key}", on_conflict="retry")
def failing(self: Task, key: str) -> None:
    """Work that fails as often as it may."""
    with noted(self, key):
        assert current_lease() is not None
        raise self.retry(countdown=0)


def is_first(task: Task) -> bool:
    """Whether no run of this message has begun before."""
    with closing(redis.Redis.from_url(app.conf.result_backend)) as client:
        return bool(client.incr(f"times:{task.request.id}") == 1)


@app.task(bind=True, acks_late=True)
@locked_task("work:{key}")
def late(self: Task, key: str, seconds: float) -> str:
    """Work whose message stays with the broker until it is done; slow only the first time."""
    first = is_first(self)
    with noted(self, key):
        time.sleep(seconds if first else 0)
    return "done"


def until_told(task: Task, key: str) -> str:
    """Work that is done when a test says so, for each run anew."""
    with noted(task, key), closing(redis.Redis.from_url(app.conf.result_backend)) as client:
        eventually(lambda: client.lpop(f"end:{key}"), within=300, every=0.02)
    return "done"


@app.task(bind=True)
@locked_task("few:{key}", limit=3)
def few(self: Task, key: str) -> str:
    """Work of which three may run, and which nobody may drop."""
    return until_told(self, key)


@app.task(bind=True)
@locked_task("few:{key}", limit=2)
def steady(self: Task, key: str, seconds: float) -> str:
    """Work of which two may run."""
    with noted(self, key):
        time.sleep(seconds)
    return "done"


@app.task(bind=True, acks_late=True)
@locked_task("work:{key}")
def long(self: Task, key: str) -> str:
    """Work that may take longer than the broker waits."""
    return until_told(self, key)


def recorded_task(*, fails: bool, track_started: bool) -> Any:
    """Work that leaves a record of its end, in success or failure."""

    @app.task(
        bind=True,
        base=LockedTask,
        acks_late=True,
        track_started=track_started,
        name=f"recorded-{fails}-{track_started}",
    )
    @locked_task("work:{key}", on_conflict="retry")
    def recorded(self: Task, key: str) -> str:
        done = until_told(self, key)
        if fails:
            raise ValueError(key)
        return done

    return recorded


RECORDED = {
    (fails, track_started): recorded_task(fails=fails, track_started=track_started)
    for fails in (False, True)
    for track_started in (False, True)
}
recorded = RECORDED[False, True]


@app.task(bind=True, acks_late=True, time_limit=1)
@locked_task("work:{key}")
def limited(self: Task, key: str) -> str:
    """Work that is ended before the broker takes it for lost."""
    return until_told(self, key)


@app.task(bind=True, acks_late=True)
@locked_task("work:{key}", max_hold=1)
def let_go(self: Task, key: str) -> str:
    """Work whose lock ends before it does."""
    return until_told(self, key)


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
@locked_task("work:{key}")
def rejecting(self: Task, key: str) -> str:
    """Work whose message goes back to the broker when its process is killed."""
    return until_told(self, key)


@app.task(bind=True)
@locked_task("work:{key}")
def stubborn(self: Task, key: str, seconds: float) -> None:
    """Work that does not hear a SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with noted(self, key):
        time.sleep(seconds)


@app.task
def collect(results: list[Any]) -> list[Any]:
    """The body of a chord, or the next link of a chain: what it was given."""
    return results
