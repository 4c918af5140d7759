"""The ACL line of the reference: its user can do what locks need, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from threading import Thread
from typing import Any

import pytest
from django.test import override_settings
from redis.exceptions import ResponseError

from django_redlock import LockTaken, conf, redlock
from django_redlock.core import completion
from django_redlock.inspection import Health
from django_redlock.inspection.survey import Wanted, survey
from django_redlock.nodes import scripts
from django_redlock.testing import EmbeddedNodes
from tests.docs.pages import SETTINGS
from tests.support.servers import redis_version
from tests.support.waiting import eventually

PASSWORD = "s3cr3t"


def acl_rules() -> list[str]:
    """The rules of the ACL line in the reference, for our password, as Redis 7.2 takes them."""
    (line,) = re.findall(r"^ACL SETUSER redlock (.*)$", SETTINGS.read_text(), re.MULTILINE)
    return str(line).replace(">PASSWORD", f">{PASSWORD}").split()


@pytest.fixture(scope="module")
def confined() -> Iterator[EmbeddedNodes]:
    """Two real nodes with the user of the reference; every lock needs both of them."""
    with EmbeddedNodes(2) as nodes:
        for node in nodes:
            with closing(node.client()) as admin:
                rules = acl_rules()
                if (7, 0) <= redis_version(node) < (7, 2):
                    rules.remove("+client|setinfo")  # the exception that the reference names
                admin.execute_command("ACL SETUSER", "redlock", *rules)
        yield nodes


def alias(nodes: EmbeddedNodes, database: int = 0) -> dict[str, Any]:
    """An alias that knows the nodes by the confined user only; it admits them, too."""
    return {
        "NODES": [
            {
                "URL": f"redis://{node.host}:{node.port}/{database}",
                "USERNAME": "redlock",
                "PASSWORD": PASSWORD,
            }
            for node in nodes
        ],
        "MAX_TTL": 60,
        "TTL": 60,
        "NODE_TIMEOUT": 10,
        "RESTART_GUARD": False,
        "OPTIONS": {"client_name": "tests"},
    }


def test_the_acl_line_suffices(confined):
    """With the user of the reference a lock can be taken, kept, given away, rested and seen."""
    with override_settings(REDLOCK={"default": alias(confined)}):
        with redlock("acl") as lease:
            lease.extend(50)
            with closing(confined[0].client()) as admin:
                shown = survey(conf.backend("default"))
                assert shown.health is Health.OK
                assert [lock.name for lock in shown.locks] == ["acl"]
                found = survey(conf.backend("default"), matching="acl".__eq__, memory=True)
                assert [lock.name for lock in found.locks] == ["acl"]
                assert all(node.maxmemory is not None for node in found.nodes)
                assert admin.execute_command("ACL LOG") == []
        assert redlock("acl").try_acquire() is not None
        given = redlock(["acl:a", "acl:b"]).acquire().handle()
        redlock.adopt(given).release()
        redlock("acl:rest", min_hold=50).acquire().release()
        assert redlock("acl:rest").try_acquire() is None
    with override_settings(REDLOCK={"default": alias(confined, database=1)}), redlock("acl:db"):
        pass
    for node in confined:
        with closing(node.client()) as admin:
            assert admin.execute_command("ACL LOG") == []


def test_the_acl_line_suffices_for_tasks(confined):
    """With the rights of the reference tasks are marked, recorded and listed, with all indexes."""
    with override_settings(REDLOCK={"default": alias(confined)}):
        backend = conf.backend("default")
        key = completion.mark_key(backend.policy, "sync", ["acl:task"])
        run = redlock.using(label="host:1(sync):id-1", renew=False)
        publish = partial(completion.set_mark, backend.policy, key, task="sync", ttl=60)
        with closing(confined[0].client()) as admin:
            for number in range(3000):
                backend.run(publish(task_id="id-1"))
                lease = run(f"run:sync:{number}").acquire()
                lease.disown()
                backend.run(completion.complete(backend.policy, lease.grant, life=60))
                calls = admin.info("commandstats")
                if {"cmdstat_zremrangebyrank", "cmdstat_zremrangebyscore"} <= set(calls):
                    break
            assert calls["cmdstat_zremrangebyrank"].get("failed_calls", 0) == 0
            found = {row.kind for row in Wanted(["sync"], finished=True).survey(backend).locks}
            assert found == {"queued", "finished"}
            backend.run(completion.remove(backend.policy, key))
            assert admin.zcard("redlock:marks") == 0
            found = {row.kind for row in Wanted(["sync"], finished=True).survey(backend).locks}
            assert found == {"finished"}
    for node in confined:
        with closing(node.client()) as admin:
            assert admin.execute_command("ACL LOG") == []


def test_the_acl_line_suffices_to_raise(confined):
    """Counters that differ are raised, with the rights of the reference."""
    with override_settings(REDLOCK={"default": alias(confined)}):
        with redlock("acl:raised") as first:
            pass
        field = conf.backend("default").policy.target(["acl:raised"]).fields[0]
        ahead = first.fence + 60_000_000
        with closing(confined[0].client()) as admin:
            admin.hset("redlock:fences", field, ahead)
        with redlock("acl:raised") as second:
            assert second.fence == ahead + 1
    for node in confined:
        with closing(node.client()) as admin:
            assert int(admin.hget("redlock:fences", field)) == ahead + 1


def test_the_acl_line_suffices_to_wait(confined):
    """With the rights of the reference one stands in line, is woken, gives up, and claims."""
    with override_settings(REDLOCK={"default": alias(confined)}), ExitStack() as stack:
        admins = [stack.enter_context(closing(node.client())) for node in confined]

        def blocked() -> bool:
            return any(int(admin.info("clients")["blocked_clients"]) for admin in admins)

        held, taken = redlock("acl:wait", renew=False).acquire(), []
        waiter = Thread(target=lambda: taken.append(redlock("acl:wait").acquire(wait=20)))
        waiter.start()
        eventually(blocked)
        held.release()
        waiter.join(30)
        assert taken[0].fence > held.fence
        assert held.remaining() <= 0
        with pytest.raises(LockTaken):
            redlock("acl:wait").acquire(wait=0.2)
        taken[0].release()
        eventually(lambda: not blocked())
        for admin in admins:  # as after a release that woke a waiter which has gone since
            admin.set("redlock:lock:acl:claim", "next::", px=3000)
            admin.rpush("redlock:queue:acl:claim", "0" * 32)
        redlock("acl:claim").acquire().release()
        for admin in admins:
            assert admin.execute_command("ACL LOG") == []


def test_the_acl_line_grants_no_more_than_is_used():
    """The commands of the reference are those of the scripts, of connecting and of waiting."""
    text = "".join([scripts.ADMIT, *scripts.TEXT.values()])
    used = {name.lower() for name in re.findall(r"redis\.p?call\('(\w+)'", text)}
    connecting = {
        "eval",
        "evalsha",
        "script|load",
        "info",
        "select",
        "client|id",
        "client|setname",
        "client|setinfo",
    }
    waiting = {"blpop", "client|unblock"}
    granted = {rule.removeprefix("+") for rule in acl_rules() if rule.startswith("+")}
    assert granted == used | connecting | waiting


@pytest.mark.parametrize(
    "words",
    [
        ["FLUSHALL"],
        ["FLUSHDB"],
        ["KEYS", "*"],
        ["SCAN", "0"],
        ["CONFIG", "GET", "requirepass"],
        ["ACL", "LIST"],
        ["CLIENT", "KILL", "TYPE", "normal"],
        ["CLIENT", "LIST"],
        ["BLPOP", "jobs", "1"],
        ["SHUTDOWN", "NOSAVE"],
        ["REPLICAOF", "127.0.0.1", "1"],
        ["GET", "session:1"],
        ["SET", "session:1", "x"],
        ["EVAL", "return redis.call('GET', KEYS[1])", "1", "session:1"],
        ["EVAL", "return redis.call('GET', 'session:1')", "0"],
        ["EVAL", "return redis.call('FLUSHALL')", "0"],
        ["EVAL", "return redis.call('KEYS', '*')", "0"],
    ],
    ids=" ".join,
)
def test_the_acl_line_refuses_the_rest(confined, words):
    """Other commands and other keys are refused, also from within a script."""
    with (
        closing(confined[0].client(username="redlock", password=PASSWORD)) as user,
        closing(confined[0].client()) as admin,
    ):
        # Redis before 7.0 says the last in a script.
        with pytest.raises(ResponseError, match=r"(?i)permission|ACL|The user executing .* can't"):
            user.execute_command(*words)
        admin.execute_command("ACL LOG", "RESET")
