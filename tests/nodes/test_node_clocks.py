"""Nodes whose wall clock is wrong, or is set: whether they vote, and what is said of them."""

from __future__ import annotations

import asyncio
import json
import mmap
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.core.management import call_command
from django.test import override_settings

from django_redlock import LockTaken, NodesUnavailable, conf, redlock
from django_redlock.core.policy import microseconds
from django_redlock.core.reasons import ReasonCode
from django_redlock.inspection.survey import survey
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes import handshake
from django_redlock.testing import EmbeddedNode, EmbeddedNodes
from tests.support.looked_at import evicting
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

PATIENCE = 20.0  # seconds: what a node may take where none is silent
OLD = 10**6  # seconds: a node of this age is under no guard
SHIM = Path(__file__).with_name("clock_shim.c")
SECONDS = r"(100\.\d|9\d\.\d) s"  # less by what a busy machine took to ask
DO = r": let NTP set the wrong one \(CLOCK_SKEW allows 5 s\)"
DIFFER = rf"clocks differ by {SECONDS}, its own and this machine's{DO}"
GUARDED = "restart guard"


class Place(NamedTuple):
    """Nodes that have been up for long, each behind a proxy, under the default alias."""

    nodes: EmbeddedNodes
    proxies: list[Proxy]
    alias: dict[str, Any]


@contextmanager
def old_nodes(count: int, *, vouched: bool = True, **options: Any) -> Iterator[Place]:
    """Nodes that say that they are old; ``vouched``: and have our mark."""
    with EmbeddedNodes(count) as nodes, ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(node.port)) for node in nodes]
        for node, proxy in zip(nodes, proxies, strict=True):
            proxy.uptime = OLD
            if vouched:
                node.vouch("redlock:")
        urls = [proxy.url for proxy in proxies]
        alias = {"NODES": urls, "NODE_TIMEOUT": PATIENCE, "RENEW": False} | options
        with override_settings(REDLOCK={"default": alias}):
            yield Place(nodes, proxies, alias)


def process(alias: dict[str, Any]) -> LockTemplate:
    """What a process has that was just started: it remembers nothing of the nodes."""
    backend = conf.make("default", alias)
    return LockTemplate(lambda _: backend)


def whys(template: LockTemplate = redlock, *, asynchronous: bool = False) -> list[str]:
    """Why each node had no part in an attempt that failed."""
    lock = template("name")
    with pytest.raises(NodesUnavailable) as caught:
        _ = asyncio.run(lock.aacquire()) if asynchronous else lock.acquire()
    return [vote.why for vote in caught.value.votes]


def status() -> str:
    """What `redlock_status` prints."""
    out = StringIO()
    with suppress(SystemExit):
        call_command("redlock_status", no_color=True, stdout=out)
    return out.getvalue()


def fences(node: EmbeddedNode) -> dict[str, str]:
    """What the node keeps beside its locks."""
    with closing(node.client(decode_responses=True)) as client:
        return dict(client.hgetall("redlock:fences"))  # type: ignore[arg-type]


@pytest.mark.parametrize("off", [-100, 100], ids=["behind", "ahead"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["thread", "task"])
def test_a_node_whose_clock_is_wrong_has_no_vote_and_is_named(off, asynchronous):
    """The others decide without it; where it is needed, the error says what to do."""
    with old_nodes(3) as (nodes, proxies, _):
        proxies[0].clock = off
        lease = redlock("name").acquire()
        assert [bool(vote.why) for vote in lease.grant.votes] == [True, False, False]
        lease.release()
        nodes.kill(1)
        told = whys(asynchronous=asynchronous)
        assert re.fullmatch(DIFFER, told[0])
        assert "clocks differ" not in told[2]
        assert "lock:" not in str(fences(nodes[0]))


@pytest.mark.parametrize("off", [-100, 100], ids=["behind", "ahead"])
def test_nothing_is_written_on_a_node_whose_clock_is_wrong(off):
    """Who connects while one of the two clocks is wrong begins no count by it."""
    with old_nodes(1, vouched=False) as (nodes, proxies, alias):
        proxies[0].clock = off
        for _ in range(3):
            assert whys(process(alias)) != [""]
            assert fences(nodes[0]) == {}
        proxies[0].clock = 0
        assert GUARDED in whys(process(alias))[0]
        assert set(fences(nodes[0])) == {"empty"}


@pytest.mark.parametrize(
    ("off", "asynchronous"), [(-100, False), (100, True)], ids=["behind, thread", "ahead, task"]
)
def test_a_machine_whose_clock_is_wrong_gets_no_lock(off, asynchronous, monkeypatch):
    """The node differs from it, and the error says by how much; when it is set, there are locks."""
    with old_nodes(1) as (_, _, alias):
        with monkeypatch.context() as patch:
            patch.setattr(handshake, "microseconds", lambda: microseconds() + off * 1_000_000)
            (told,) = whys(asynchronous=asynchronous)
            assert re.fullmatch(DIFFER, told)
        process(alias)("name").acquire().release()


def test_the_status_shows_a_wrong_clock():
    """A row of the node, short, and a sentence below the table that says what to do."""
    with old_nodes(3) as (_, proxies, _):
        proxies[2].clock = -100
        found = survey(conf.backend("default"))
        assert (found.nodes[2].state, found.voting) == ("no vote", 2)
        assert re.fullmatch(DIFFER, found.nodes[2].why)
        assert found.nodes[2].guard_left == 0
        lines = status().splitlines()
        (row,) = [line for line in lines if line.startswith(f"127.0.0.1:{proxies[2].port}/0")]
        assert re.search(rf"no vote: clocks differ by {SECONDS}  ", row)
        assert row.split()[-1] == "-"  # no seconds of a guard
        assert any(line.startswith("clock: let NTP set the wrong one") for line in lines)


def test_a_node_without_a_vote_tells_of_its_memory():
    """Under the guard, or with a wrong clock: what it does when it is full, and who waits."""
    with old_nodes(3) as (nodes, proxies, _), ExitStack() as stack:
        guarded, *_ = [stack.enter_context(evicting(node, "volatile-lru")) for node in nodes]
        guarded.delete("redlock:fences")
        proxies[1].clock = 100
        opened = []
        for _ in range(2):
            found = survey(conf.backend("default"), memory=True)
            assert [node.voting for node in found.nodes] == [False, False, True]
            assert [node.maxmemory for node in found.nodes] == [200 * 1024 * 1024] * 3
            assert found.waiting == 0
            assert ReasonCode.EVICTS in {each.code for each in found.advice}
            opened.append(guarded.info("stats")["total_connections_received"])
        assert opened[0] == opened[1]


@pytest.mark.slow
def test_a_node_whose_clock_was_set_counts_as_restarted():
    """Locks may have ended before their time: so who saw the clock before waits out the guard."""
    with old_nodes(1) as (_, proxies, _):
        proxies[0].clock = -100
        assert re.fullmatch(DIFFER, whys()[0])
        proxies[0].clock = 0
        eventually(lambda: GUARDED in whys()[0], every=0.05)
        assert (survey(conf.backend("default")).nodes[0].guard_left or 0) > 60
        # Another connection of this process finds a clock that goes right, and is not fooled.
        conf.backend("default").group.close()
        assert GUARDED in whys()[0]
        assert (survey(conf.backend("default")).nodes[0].guard_left or 0) > 60


def test_a_node_that_is_older_than_its_last_life_counts_as_restarted():
    """A process that spoke with the node before it was restarted knows how old it is at most."""
    with old_nodes(1) as (nodes, _, alias):
        redlock("name").acquire().release()
        nodes.restart(0)
        nodes[0].vouch("redlock:")
        eventually(lambda: GUARDED in whys()[0], every=0.05)
        assert (survey(conf.backend("default")).nodes[0].guard_left or 0) > 60
        # What no client can know that did not see it: this node kept its mark.
        process(alias)("name").acquire().release()


@pytest.mark.parametrize(
    "options", [{"CLOCK_SKEW": 0}, {"RESTART_GUARD": False}, {"CLOCK_SKEW": 250}]
)
def test_where_no_clock_is_compared(options):
    """With CLOCK_SKEW 0 or without the guard any clock will do; else half of CLOCK_SKEW."""
    with old_nodes(1, **options) as (_, proxies, _):
        proxies[0].clock = -100
        redlock("name").acquire().release()


@pytest.mark.slow
def test_a_node_that_is_asked_slowly_is_not_blamed():
    """The node reads its clock at some moment between question and answer, however long it is."""
    with old_nodes(1, CLOCK_SKEW=0.1) as (_, proxies, _):
        proxies[0].delay = 0.4
        redlock("name").acquire().release()


OURS = """
import json, sys, time
ahead = [float(sys.argv[2])]
real = time.time_ns
time.time_ns = lambda: real() + int(ahead[0] * 1e9)
from django.conf import settings
settings.configure(REDLOCK={"default": json.loads(sys.argv[1])})
from django_redlock import NodesUnavailable, redlock

try:
    redlock("name").acquire()
except NodesUnavailable as error:
    print(json.dumps(str(error)))
ahead[0] = 0.0
lease = redlock("name", wait=40).acquire()
print(json.dumps(lease.fence))
"""


@pytest.mark.slow
@pytest.mark.parametrize("off", [100, -100], ids=["ahead", "behind"])
def test_a_machine_whose_own_clock_is_wrong_is_told_so(off):
    """It has no lock, and learns by how much the clocks differ; it goes on when NTP has set it."""
    with old_nodes(3) as (_, _, alias):
        command = [sys.executable, "-c", OURS, json.dumps(alias), str(off)]
        told = subprocess.check_output(command, text=True, timeout=120)
        error, fence = map(json.loads, told.splitlines())
    assert "0 of 3 nodes could vote, 2 are needed; 3 of 3 nodes: " in error
    assert len(re.findall(DIFFER, error)) == 1  # said once of all of them
    assert fence > 0


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that makes a server's clock wrong."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler to make a wrong clock with")
    made = tmp_path_factory.mktemp("shim") / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-o", str(made), str(SHIM)]
    subprocess.run(command, check=True, capture_output=True)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("off", "looked"),
    [
        (-100, False),
        pytest.param(-100, True, marks=pytest.mark.nightly),
        pytest.param(-8, False, marks=pytest.mark.nightly),
        pytest.param(-8, True, marks=pytest.mark.nightly),
    ],
    ids=["long-unseen", "long-looked-at", "short-unseen", "short-looked-at"],
)
def test_a_node_that_boots_with_a_slow_clock_lets_no_second_holder_in(
    tmp_path, monkeypatch, shim, looked, off
):
    """It restarts empty, NTP sets its clock, and it has no vote before what it forgot is over."""
    clock = tmp_path / "clock"
    clock.write_bytes(struct.pack("q", off))
    with EmbeddedNodes(3) as nodes:
        alias = nodes.settings(MAX_TTL=10, CLOCK_SKEW=1, RENEW=False)
        first = process(alias)
        nodes.pause(2)
        held: Any = eventually(lambda: first("name", ttl=10).try_acquire())  # on nodes 0 and 1
        nodes.kill(0)
        nodes.resume(2)
        with monkeypatch.context() as patch:
            patch.setenv("LD_PRELOAD", str(shim))
            patch.setenv("CLOCK_SHIM", str(clock))
            nodes.restart(1)
        with closing(nodes[2].client()) as client:
            eventually(lambda: client.delete("redlock:lock:name") or True)
        if looked:
            assert "clocks differ" in whys(process(alias))[1]
        with clock.open("r+b") as file, mmap.mmap(file.fileno(), 8) as mapped:
            mapped[:] = struct.pack("q", 0)
        turns = 0
        while held.remaining() > 0:
            second = None
            with suppress(NodesUnavailable, LockTaken):
                second = process(alias)("name").acquire()
            assert second is None or held.remaining() <= 0
            turns += 1
        assert turns > 0
        # When the guard is over, both nodes vote.
        eventually(lambda: attempt(process(alias)), within=30, every=0.2)


def attempt(template: LockTemplate) -> Any:
    """A lease, or None if no majority votes."""
    with suppress(NodesUnavailable):
        return template("name").try_acquire()
    return None
