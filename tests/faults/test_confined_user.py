"""Locks by Unix sockets as a user with exactly the rights of the documentation, under load."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from django_redlock import LockTaken, conf, redlock
from django_redlock.core import completion
from django_redlock.core.policy import Policy
from django_redlock.inspection import Health
from django_redlock.inspection.survey import INDEXES, survey
from django_redlock.locks.lock import Lock
from django_redlock.testing import EmbeddedNodes
from tests.django.test_check import rules
from tests.docs.test_acl import PASSWORD
from tests.support.looked_at import check, status
from tests.support.waiting import eventually

THREADS, LOOPS, TASKS = 6, 2, 8
LONG = 120.0  # seconds: nobody of this test waits for that
# Of what happens now and then: a counter is raised, a wake-up is left over, a list is shortened.
SELDOM = {"hmget", "lpop", "zremrangebyrank", "zremrangebyscore"}
UNSEEN = {"script|load", "client|id", "client|unblock", "client|setname", "client|setinfo"}


@pytest.fixture(scope="module")
def nodes() -> Iterator[EmbeddedNodes]:
    """Three nodes with a Unix socket each."""
    with EmbeddedNodes(3, config={"unixsocket": "node.sock"}) as nodes:
        yield nodes


@contextmanager
def confined(nodes: EmbeddedNodes, without: str = "") -> Iterator[None]:
    """The default alias: the nodes by their sockets, as the user of the documentation."""
    places = []
    for node in nodes:
        with closing(node.client(decode_responses=True)) as admin:
            admin.flushall()
            allowed = [rule for rule in rules(node) if rule != without]
            admin.execute_command("ACL SETUSER", "redlock", *allowed)
            admin.execute_command("CONFIG RESETSTAT")
            admin.execute_command("ACL LOG", "RESET")
            path = Path(str(admin.config_get("dir")["dir"]), "node.sock")
        url = f"unix://{path}?db=1"
        places.append({"URL": url, "USERNAME": "redlock", "PASSWORD": PASSWORD})
    alias = {"NODES": places, "NODE_TIMEOUT": 10, "MAX_TTL": 60, "RESTART_GUARD": False}
    with override_settings(REDLOCK={"default": alias | {"OPTIONS": {"client_name": "load"}}}):
        yield


def info(nodes: EmbeddedNodes, section: str) -> list[dict[str, Any]]:
    """A section of INFO of each node."""
    found = []
    for node in nodes:
        with closing(node.client(protocol=2)) as admin:  # by 3, redis-py asks for what is an error
            found.append(dict(admin.info(section)))
    return found


def errors(nodes: EmbeddedNodes) -> dict[str, int]:
    """The errors that the nodes have answered with, by their code."""
    found: dict[str, int] = {}
    for section in info(nodes, "errorstats"):
        for name, said in section.items():
            code = name.removeprefix("errorstat_")
            found[code] = found.get(code, 0) + said["count"]
    return found


def failed(nodes: EmbeddedNodes) -> set[str]:
    """The commands that a node has answered with an error, in scripts or not."""
    return {
        name.removeprefix("cmdstat_")
        for section in info(nodes, "commandstats")
        for name, said in section.items()
        if said["failed_calls"] or said["rejected_calls"]
    }


def refused(nodes: EmbeddedNodes) -> set[str]:
    """What the nodes have refused to this user."""
    found = set()
    for node in nodes:
        with closing(node.client(decode_responses=True)) as admin:
            found |= {str(each["object"]) for each in admin.acl_log()}
    return found


def used(nodes: EmbeddedNodes) -> set[str]:
    """The commands that the nodes have carried out, in scripts or not."""
    sections = info(nodes, "commandstats")
    return {name.removeprefix("cmdstat_") for section in sections for name in section}


# -- the load -------------------------------------------------------------------------------------


class Load:
    """Threads and tasks that use all there is, for a number of rounds.

    Attributes:
        inside: how many are inside of the block that all compete for; ``most`` was the most.
        failed: what was raised.
    """

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.inside = self.most = 0
        self.failed: list[BaseException] = []
        self._numbers = itertools.count()

    def run(self) -> None:
        """Carry it out."""
        each: list[Callable[[], object]] = [
            *[self._thread] * THREADS,
            *[lambda: asyncio.run(self._loop())] * LOOPS,
            self._look,
        ]
        threads = [threading.Thread(target=self._caught, args=(do,)) for do in each]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _caught(self, do: Callable[[], object]) -> None:
        try:
            do()
        except BaseException as error:  # noqa: BLE001 - the test tells of it
            self.failed.append(error)

    @contextmanager
    def _entered(self) -> Iterator[None]:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            yield
        finally:
            self.inside -= 1

    def _thread(self) -> None:
        for _ in range(self.rounds):
            number = next(self._numbers)
            with redlock("contended", wait=LONG) as lease, self._entered():
                lease.extend()
            given = redlock([f"a:{number}", f"b:{number}"]).acquire().handle()
            redlock.adopt(given).release()
            redlock(f"rests:{number}", min_hold=0.05).acquire().release()
            self._gives_up(redlock("kept"))
            self._task(number)

    async def _loop(self) -> None:
        await asyncio.gather(*[self._in_loop() for _ in range(TASKS)])

    async def _in_loop(self) -> None:
        for _ in range(self.rounds):
            number = next(self._numbers)
            async with redlock("contended", wait=LONG) as lease:
                with self._entered():
                    await lease.aextend()
            given = (await redlock(f"given:{number}").aacquire()).handle()
            await (await redlock.aadopt(given)).arelease()
            with pytest.raises(LockTaken):
                await redlock("kept").aacquire(wait=0.01)

    def _gives_up(self, lock: Lock) -> None:
        with pytest.raises(LockTaken):
            lock.acquire(wait=0.01)

    def _task(self, number: int) -> None:
        """Be a task: marked as queued, run under its run name, recorded as done."""
        backend = conf.backend("default")
        policy: Policy = backend.policy
        key = completion.mark_key(policy, "sync", [f"task:{number}"])
        publish = partial(completion.set_mark, policy, key, task="sync", ttl=60)
        marked = backend.run(publish(task_id=f"id-{number}"))
        assert marked.certain
        assert backend.run(publish(task_id="other")).duplicate_of == f"id-{number}"
        run = redlock.using(label=f"host:1(sync):id-{number}", renew=False)
        lease = run(f"run:sync:{number}").acquire()
        lease.disown()
        assert backend.run(completion.complete(policy, lease.grant, life=0.5))
        backend.run(completion.remove(policy, key, marked.nonce))

    def _look(self) -> None:
        backend = conf.backend("default")
        for _ in range(self.rounds):
            shown = survey(backend, memory=True, indexes=tuple(INDEXES))
            assert shown.health is Health.OK
            assert "kept" in {lock.name for lock in shown.locks}
            assert redlock("kept").state().held
            assert status()[0] == 0


def played(nodes: EmbeddedNodes, rounds: int) -> Load:
    """The load, beside a lock that is held and renewed all the while."""
    load = Load(rounds)
    with redlock("kept"):
        load.run()
    return load


def left(nodes: EmbeddedNodes) -> set[str]:
    """The locks, queues and marks that the nodes have still."""
    found: set[str] = set()
    for node in nodes:
        with closing(node.client(decode_responses=True, db=1)) as admin:
            found |= set(map(str, admin.keys("*:*:*")))
    return found


def where(nodes: EmbeddedNodes, keys: set[str]) -> list[tuple[int, str, int]]:
    """The nodes that have these keys, and for how many milliseconds."""
    found = []
    for place, node in enumerate(nodes):
        with closing(node.client(db=1)) as admin:
            found += [(place, key, int(admin.pttl(key))) for key in keys if admin.exists(key)]
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("rounds", [1, pytest.param(6, marks=pytest.mark.nightly)])
def test_the_rights_of_the_documentation_suffice_under_load(nodes, rounds):
    """Threads and tasks do all that locks can do, and no node refuses anything or keeps a key."""
    with confined(nodes):
        load = played(nodes, rounds)
        assert (load.failed, load.most) == ([], 1)
        # A client of another test that had a node at this port before may try AUTH without a user,
        # which is ERR here; our user's would be WRONGPASS.
        assert failed(nodes) <= {"auth"}
        assert errors(nodes).keys() <= {"ERR"}
        assert refused(nodes) == set()
        granted = {rule[1:] for rule in rules(nodes[0]) if rule.startswith("+")}
        if rounds > 1:  # in one it depends on who waits for whom
            assert granted - used(nodes) <= SELDOM | UNSEEN
        with suppress(AssertionError):
            eventually(lambda: not left(nodes))
        assert where(nodes, left(nodes)) == []
        told = json.loads(check("--json")[1])["aliases"]["default"]
        assert [node["rights"] for node in told["nodes"]] == [True] * 3
        assert told["usable"] == 3
        assert {name.partition("|")[0] for name in refused(nodes)} == {"config"}  # as it says


@pytest.mark.slow
def test_a_right_that_is_missing_is_noticed_under_load(nodes):
    """The check can fail: who may not prolong a key is refused that, and locks fail for it."""
    with confined(nodes, without="+pexpire"):
        assert played(nodes, rounds=1).failed
        assert refused(nodes) == {"pexpire"}
        code, out = check()
        assert code == 4
        assert "no permissions to run the 'pexpire' command; give the user the rights" in out
