"""The parts of the bench that measure threads, waiting, memory, settings, imports and one node."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any, Self

import pytest

from benchmarks import stage as stages
from benchmarks import turns
from benchmarks.answers import QUESTIONS, Question, answer
from benchmarks.clients import (
    AS_IT_IS,
    FLOORS,
    PLAIN,
    REDLOCK_NG_ASYNCIO,
    SOCKETS,
    THREADS,
    TUNED,
    TUNED_NEWEST,
    Client,
    command,
)
from benchmarks.goals import GOALS
from benchmarks.parts import before, fencing, handover, imports, memory, single, tasks, threads
from benchmarks.parts.crowds import Turn, Turns, no_answer
from benchmarks.peers import PeerUnavailable
from benchmarks.peers.environments import ROOT
from benchmarks.processes import Block
from benchmarks.programs import inside, serve, sockets, waiting_sockets
from benchmarks.programs.task_sockets import TaskSockets
from benchmarks.programs.waiting_sockets import WaitingSockets
from benchmarks.report import DETAILS, as_markdown
from benchmarks.result import Result
from benchmarks.stage import TINY, Stage
from benchmarks.turns import Spread
from django_redlock.testing import EmbeddedNodes
from tests.support.databases import why_not
from tests.support.loops import keys_on
from tests.support.waiting import eventually
from tools import pythons

FIGURES = ROOT / "docs/explanation/performance-figures.md"


@pytest.fixture(scope="module")
def nodes() -> Iterator[EmbeddedNodes]:
    """Five nodes, which vote at once."""
    with EmbeddedNodes(5) as nodes:
        yield nodes


@pytest.fixture
def stage(nodes, monkeypatch) -> Stage:
    """A stage that neither waits for old nodes nor pins this process."""
    monkeypatch.setattr(stages, "PROCESSORS", [])
    ready = nodes.settings
    monkeypatch.setattr(nodes, "settings", lambda **more: ready(**more, RESTART_GUARD=False))
    return Stage(nodes, TINY)


# -- threads --------------------------------------------------------------------------------------


def asked(**more: Any) -> dict[str, Any]:
    """What the bench asks of a program, in short."""
    return {"name": "name", "pairs": 6, "tasks": 3, "seconds": 20.0} | more


def block(style: serve.Blocking, **more: Any) -> dict[str, Any]:
    """What a program answers that is asked so."""
    return serve._block(style, asked(**more), None)  # type: ignore[arg-type]


def test_threads_take_their_locks_at_once():
    """As many threads as were asked for are within a lock together, each with its own name."""
    together = threading.Barrier(3)
    names: list[str] = []

    def acquire(name: str) -> str:
        together.wait(20)
        names.append(name)
        return name

    said = block(serve.Blocking(acquire, lambda _: None))
    assert (said["pairs"], said["failed"], len(said["samples"])) == (6, 0, 6)
    assert sorted(set(names)) == ["name:0", "name:1", "name:2"]


def test_what_fails_in_a_thread_is_told():
    """Locks that one of the threads does not get are counted, with the reason."""

    def acquire(name: str) -> str | None:
        return None if name == "name:1" else name

    said = block(serve.Blocking(acquire, lambda _: None))
    assert (said["pairs"], said["failed"]) == (4, 2)
    assert said["error"] == "NotHadError: name:1"


def test_eight_threads_beside_one(stage):
    """The part has a row for each, and their ratio is a figure."""
    result = threads.threads(stage)
    assert [row[""] for row in result.rows] == [
        "django-redlock, 1 thread",
        "django-redlock, 8 threads",
    ]
    assert [row["failed"] for row in result.rows] == ["0", "0"]
    assert result.figures["unpinned: 8 threads: locks per second ÷ 1 thread"] is not None


# -- fenced rows ----------------------------------------------------------------------------------


def test_databases_of_fenced_rows(stage, monkeypatch, django_db_blocker):
    """Four ways on each, two of which are figures; a server that is not there is told."""
    told = "no mariadbd"
    monkeypatch.setattr(
        fencing, "why_not", lambda kind: told if kind == "mariadb" else why_not(kind)
    )
    with django_db_blocker.unblock():
        result = fencing.fencing(stage)
    assert result.missing.pop("MariaDB") == told
    assert len(result.rows) == 8 * (2 - len(result.missing))
    assert None not in [cell for row in result.rows for cell in row.values()]
    for goal in GOALS:
        name, _, figure = goal.figure.partition(": ")
        if name in fencing.NAMES.values():
            missing = name in {"MariaDB", *result.missing}
            assert (result.figures[f"{name}: {figure}"] is None) == missing
            assert f"{name}, no wait for the disk: {figure}" in result.figures


# -- waiting by sockets ---------------------------------------------------------------------------


@pytest.fixture
def by_hand(nodes, monkeypatch) -> Iterator[Callable[[], WaitingSockets]]:
    """Make callers with sockets of their own, who are woken and do not look meanwhile.

    Who looks goes to the end of the queue, and who is late for a reservation is overtaken.
    """
    monkeypatch.setattr(waiting_sockets, "LOOK", 20.0)
    monkeypatch.setattr(waiting_sockets, "NEWS", 60_000)
    monkeypatch.setattr(sockets, "RESERVED", 10_000)
    with ExitStack() as stack:

        def make() -> WaitingSockets:
            return stack.enter_context(closing(WaitingSockets(nodes.urls, "redlock:", 30)))

        yield make


def test_the_yardstick_of_waiting_hands_over(nodes, by_hand):
    """One caller holds the name, one is refused, and two get it in order of arrival."""
    holder, hasty, first, second = (by_hand() for _ in range(4))
    lease = holder.wait("name", 0)
    assert lease
    assert hasty.wait("name", 0) is None
    had: list[str] = []

    def take(who: str, caller: WaitingSockets) -> None:
        taken = caller.wait("name", 20)
        assert taken
        had.append(who)
        caller.free(taken)

    with ThreadPoolExecutor(2) as pool:
        works = [pool.submit(take, "first", first)]
        eventually(lambda: waiting(nodes) == 1)
        works.append(pool.submit(take, "second", second))
        eventually(lambda: waiting(nodes) == 2)
        assert had == []
        holder.free(lease)
        for work in works:
            work.result(20)
    assert had == ["first", "second"]
    eventually(lambda: not any("redlock:lock:name" in keys for keys in keys_on(nodes)))


def test_the_yardstick_of_waiting_sends_what_ours_do(nodes, by_hand):
    """Five to be refused, one to join the queue, five to acquire and five to release."""
    holder, waiter = by_hand(), by_hand()
    lease = holder.wait("other", 0)
    assert lease
    before_it = sum(sent(nodes).values())

    def turn() -> None:
        taken = waiter.wait("other", 20)
        assert taken
        waiter.free(taken)

    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(turn)
        eventually(lambda: waiting(nodes) == 1)
        holder.free(lease)
        work.result(20)
    eventually(lambda: sum(sent(nodes).values()) - before_it == 16 + 5)


def waiting(nodes: EmbeddedNodes) -> int:
    """How many connections are blocked on a list of any node."""
    return sum(info["blocked_clients"] for info in infos(nodes, "clients"))


def sent(nodes: EmbeddedNodes) -> dict[str, int]:
    """How many commands of the protocol the nodes were sent, by kind."""
    stats = infos(nodes, "commandstats")
    return {
        kind: sum(each.get(f"cmdstat_{kind}", {}).get("calls", 0) for each in stats)
        for kind in ("evalsha", "blpop")
    }


def infos(nodes: EmbeddedNodes, section: str) -> list[dict[str, Any]]:
    """What all nodes say about themselves."""
    with ExitStack() as stack:
        clients = [stack.enter_context(closing(node.client())) for node in nodes]
        return [client.info(section) for client in clients]


def test_turns_beside_those_of_the_sockets():
    """Rates are compared turn by turn; a crowd that is not heard of has none."""
    turns = [Turn(0.0, 0.1, 0.2), Turn(0.2, 0.5, 0.6)]
    two, one = (Turns([turns[:some]], 0.0, 1.0, 0, "", 0, 0, 0) for some in (2, 1))
    assert handover.beside([one, two], [two, two]) == Spread(0.75, 0.625, 0.875)
    assert handover.beside([two], [no_answer(8, 1.0)]) is None


# -- many tasks ---------------------------------------------------------------------------------


def test_the_yardstick_of_tasks_locks(nodes):
    """A majority has the name, nobody else gets it, and the release frees it on all nodes."""

    async def check() -> None:
        with closing(TaskSockets(nodes.urls, "redlock:", 30)) as sockets:
            leases = await asyncio.gather(*(sockets.acquire(f"task:{i}") for i in range(100)))
            held = {f"redlock:lock:task:{i}" for i in range(100)}
            assert [held - set(keys) for keys in keys_on(nodes)] == [set()] * len(nodes.urls)
            with pytest.raises(RuntimeError, match="0 nodes said GRANTED"):
                await sockets.acquire("task:7")
            await asyncio.gather(*map(sockets.release, leases))
            assert [held & set(keys) for keys in keys_on(nodes)] == [set()] * len(nodes.urls)

    asyncio.run(check())


def test_the_yardstick_of_tasks_asks_together(nodes):
    """What tasks ask in one tick is one message to each node."""

    def reads() -> list[int]:
        return [info["total_reads_processed"] for info in infos(nodes, "stats")]

    async def check() -> None:
        with closing(TaskSockets(nodes.urls, "redlock:", 30)) as sockets:
            await sockets.release(await sockets.acquire("first"))
            before = reads()
            leases = await asyncio.gather(*(sockets.acquire(f"together:{i}") for i in range(50)))
            after = reads()
            assert max(now - then for now, then in zip(after, before, strict=True)) < 25
            await asyncio.gather(*map(sockets.release, leases))

    asyncio.run(check())


def test_the_processors_of_the_nodes_are_read(stage):
    """More work is more time, of all nodes together; a block notes what is done in it."""

    def work() -> Block:
        with ExitStack() as stack:
            for node in stage.nodes:
                client = stack.enter_context(closing(node.client()))
                client.eval("for i = 1, 300000 do redis.sha1hex('') end", 0)
        return Block(1.0, 2.0, 1.0, 0.0, 10, 0, "")

    with stage.worked() as worked:
        idle = turns.metered(lambda: Block(1.0, 2.0, 1.0, 0.0, 10, 0, ""), worked)
        busy = turns.metered(work, worked)
    assert turns.nodes(turns.metered(work, None)) is None
    few, many = turns.nodes(idle), turns.nodes(busy)
    assert few is not None
    assert many is not None
    assert many > max(10 * few, 5000)


# -- garbage and memory ---------------------------------------------------------------------------


class Cycle:
    """Garbage that only the collector frees."""

    def __init__(self) -> None:
        self.itself = self


def test_a_cycle_that_a_lock_leaves_is_counted(monkeypatch):
    """By a thread and by tasks, and bare futures leave none."""
    names = [f"name:{i}" for i in range(50)]
    assert inside._left_by(lambda _: Cycle(), names) >= 50

    async def lock(_: str) -> None:
        Cycle()

    monkeypatch.setattr(inside, "_lock", lock)
    for how in (inside._one_after_the_other, inside._all_at_once):
        said = inside._garbage_of_tasks(how, {"name": "name", "pairs": 50})
        assert said["locks"] - said["futures"] >= 50  # type: ignore[operator]
    assert gc.isenabled()


class Heavy:
    """Leases of 10,000 bytes, of which 1,000 stay."""

    def __init__(self) -> None:
        self._left: list[bytes] = []
        self._lost: list[bool] = []

    def take(self, names: Sequence[str], held: list[Any], **_: Any) -> None:
        for i in range(len(names)):
            held[i] = Lease()

    def release(self, held: list[Any]) -> None:
        for i in range(len(held)):
            held[i] = None
            self._left.append(bytes(1000))

    def sleep(self, seconds: float) -> None:
        pass


class Lease:
    def __init__(self) -> None:
        self.lost = False
        self.text = bytes(10_000)


def test_what_leases_weigh_and_leave_is_counted():
    """Bytes while all are held, and bytes that nothing gives back."""
    heavy: Any = Heavy()
    said = inside._memory({"name": "name", "leases": 200, "seconds": 0}, heavy)
    assert 10_000 < said["held"] / 200 < 11_000  # type: ignore[operator]
    assert 1000 < said["left"] / 200 < 1200  # type: ignore[operator]
    assert said["lost"] == 0


def test_the_parts_about_memory_run(stage, monkeypatch):
    """Our locks by threads and tasks, in a process of their own."""
    monkeypatch.setattr(memory, "LOCKS", 50)
    result = memory.garbage(stage)
    assert [row[""] for row in result.rows] == [each.label for each in memory.GARBAGE]
    assert all(isinstance(row["beyond"], int) for row in result.rows)
    small = Stage(stage.nodes, TINY._replace(leases=20, ttl=1.5))
    result = memory.memory(small)
    assert [row["failed"] for row in result.rows] == ["0", "0"]
    for name in ("threads", "asyncio"):
        held, left = (result.figures[f"bytes {what} lease, {name}"] for what in WHAT)
        assert held is not None
        assert left is not None
        assert held.median > max(left.median, 100)


WHAT = ("of a held", "left of a released")


# -- settings, imports, revisions, one node -------------------------------------------------------


def start(*, uvloop: bool, collector: bool) -> str:
    """What the program says that it runs with; it takes a lock in memory meanwhile."""
    told: dict[str, Any] = {"uvloop": uvloop, "gc": collector, "ttl": 5}
    told["urls"] = [f"memory://{i}" for i in range(3)]
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.programs.tuned", json.dumps(told | {"alias": {}})],
        cwd=ROOT,
        input=json.dumps(asked(style="asyncio")),
        capture_output=True,
        text=True,
        check=True,
    )
    ready, done = map(json.loads, ended.stdout.splitlines())
    assert (done["pairs"], done["failed"]) == (6, 0)
    return str(ready["ready"])


def test_the_settings_are_in_force():
    """The loop is another one, objects are frozen and the thresholds set; or nothing is."""
    pytest.importorskip("uvloop")
    bare, tuned = start(uvloop=False, collector=False), start(uvloop=True, collector=True)
    assert "uvloop" not in bare
    assert "gc" not in bare
    assert "uvloop" in tuned
    assert tuned.endswith(", gc")


class Played:
    """Processes in place of real ones: each client has so many locks a second."""

    def __init__(self, rates: dict[Client, float]) -> None:
        self.present = list(rates)
        self.missing: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self._rates = rates

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def block(self, client: Client, pairs: int, *, tasks: int) -> Block:
        seconds = pairs / self._rates[client]
        return Block(1.0, 2.0, seconds, seconds / 2, pairs, 0, "")


@pytest.mark.parametrize(("newest", "factor"), [(300.0, 30.0), (None, 20.0)])
def test_each_setting_is_beside_none(stage, monkeypatch, newest, factor):
    """All settings are those that this machine has; without Python 3.13 they are the others."""
    rates = {AS_IT_IS: 100.0, TUNED: 200.0, REDLOCK_NG_ASYNCIO: 10.0, FLOORS[0]: 500.0}
    if newest:
        rates[TUNED_NEWEST] = newest
    monkeypatch.setattr(tasks, "Processes", lambda *_, **__: Played(rates))
    result = tasks.documented(stage)
    times = {row[""]: row["÷ as it is"] for row in result.rows}
    assert times["django-redlock, uvloop, gc"] == Spread(2, 2, 2)
    of = f"unpinned: {TINY.tasks[-1]} tasks"
    for how, reached in (("as it is", 10.0), ("all settings", factor)):
        found = result.figures[f"{of}, {how}: locks per second ÷ redlock-ng"]
        assert found is not None
        assert found.median == pytest.approx(reached)
    floor = result.figures[f"{of}, sockets by hand, as it is: ÷ redlock-ng"]
    assert floor is not None
    assert floor.median == pytest.approx(50.0)
    assert result.figures[f"{of}, sockets by hand, all settings: ÷ redlock-ng"] is None
    assert all(row["nodes' processors, µs"] is not None for row in result.rows)


def test_a_python_that_is_not_there_is_not_measured(monkeypatch):
    """The row says why it is missing."""
    monkeypatch.setattr(pythons, "found", dict)
    with pytest.raises(PeerUnavailable, match=r"no Python 3\.13"):
        command(TUNED_NEWEST.program)


def test_a_slow_import_is_noticed(monkeypatch):
    """The figure is what the import takes beyond that of Django and redis-py."""
    stage: Any = Stage.__new__(Stage)
    stage.effort = TINY._replace(rounds=6)
    monkeypatch.setattr(imports, "OURS", "time.sleep(0.2)")
    found = imports.imports(stage).figures[imports.FIGURE]
    assert found is not None
    assert 150 < found.median < 2000
    monkeypatch.setattr(imports, "OURS", "")
    found = imports.imports(stage).figures[imports.FIGURE]
    assert found is not None
    assert found.median < 150


def test_an_earlier_revision_that_git_does_not_have(monkeypatch):
    """Nothing is compared, and the reason is told."""
    monkeypatch.setattr(before, "REVISION", "nobody")
    stage: Any = None
    result = before.before(stage)
    assert result.rows == []
    assert result.figures == {}
    assert "nobody" in result.missing


def test_one_node_is_asked(stage, monkeypatch):
    """Only the first node has the locks, and who cannot be had is told."""
    gone = Client("redis-py Lock", "gone", "threads")
    monkeypatch.setattr(single, "CLIENTS", (PLAIN, SOCKETS, THREADS, gone))

    def unavailable(program: str) -> tuple[list[str], dict[str, object]]:
        if program == "gone":
            raise PeerUnavailable("it is not there")
        return command(program)

    monkeypatch.setattr("benchmarks.processes.command", unavailable)
    counts = scripts(stage.nodes)
    result = single.one_node(stage)
    after = scripts(stage.nodes)
    assert after[0] > counts[0]
    assert after[1:] == counts[1:]
    assert [row["failed"] for row in result.rows] == ["0"] * 3
    assert result.missing == {"redis-py Lock": "it is not there"}
    assert result.figures["unpinned: one node: threads ÷ sockets by hand, our scripts"] is not None
    assert result.figures["unpinned: one node: threads ÷ redis-py Lock"] is None


def scripts(nodes: EmbeddedNodes) -> list[int]:
    """How many scripts each node has run."""
    found = infos(nodes, "commandstats")
    return [each.get("cmdstat_evalsha", {}).get("calls", 0) for each in found]


# -- answers --------------------------------------------------------------------------------------


def test_an_answer_has_the_figures():
    """Medians stand in the sentence, a dash for what was not measured; no figure, no answer."""
    questions = (Question("How?", "{} and {}.", ("a", "b")), Question("Why?", "{}.", ("c",)))
    result = Result("part", figures={"a": Spread(1234, 1, 2), "c": None})
    assert answer([result], questions) == [{"question": "How?", "answer": "1,234 and –."}]


def test_every_answer_has_a_place_for_each_figure():
    """No figure is lost, none is named twice."""
    for question in QUESTIONS:
        assert question.answer.count("{}") == len(set(question.figures)) == len(question.figures)


def test_the_answers_come_first():
    """The page shows them before it says how they were measured."""
    result = Result("part", figures={"unpinned: threads, ms": Spread(0.5, 0.4, 0.6)})
    page = as_markdown({"about": "it"}, [result], [])
    first, rest = page.split(DETAILS)
    assert "| How long does a lock take? | " in first
    assert "0.50 ms by a thread, – ms by a task" in first
    assert "## part" in rest
    for half in (FIGURES.read_text().split(DETAILS)[0], first):
        assert half.startswith("% Written by")
    assert (FIGURES.parent / "performance.md").read_text().count(DETAILS) == 2


def test_the_page_answers_every_question():
    """None was left out because no part measures its figures."""
    first = FIGURES.read_text().split(DETAILS)[0]
    for question in QUESTIONS:
        assert f"| {question.text} | " in first


def test_a_thread_that_ended_meanwhile_is_not_pinned(monkeypatch):
    """The threads of a process are listed before they are pinned."""
    pinned: list[int] = []

    def pin(pid: int, processors: list[int]) -> None:
        if not pinned:
            pinned.append(pid)
            raise ProcessLookupError
        pinned.append(pid)

    monkeypatch.setattr("os.sched_setaffinity", pin)
    thread = threading.Thread(target=(over := threading.Event()).wait)
    thread.start()
    try:
        stages.pin(os.getpid(), [0])
    finally:
        over.set()
        thread.join()
    assert len(pinned) > 1
