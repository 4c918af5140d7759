"""Leases that are healed, given away, adopted, revoked and rested, beside waiters and faults.

    make soak ARGS=handles                            ten minutes
    make soak ARGS="handles --seconds 60 --seed 417"
    make soak ARGS="handles --seconds 60 --broken"    undone heals wake: shows the lost handles

Several processes give, adopt and wait; an operator revokes. They are stopped and killed, and so are
the nodes, which are some milliseconds away, so that a heal is often on its way when its lease is
given away. Each process writes down when it believes in which lease. It is wrong if two believed in
one name at the same moment, a fence did not grow, a min_hold was cut short, or a handle was lost
that no deadline, no revoke and no restart explains.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import django
import django.test
from django.conf import settings as django_settings

from dev.soak import verdict
from dev.soak.notebook import Follower, Notebook, read
from dev.soak.verdict import Played
from django_redlock import NodesUnavailable, redlock
from django_redlock.core.policy import boottime
from django_redlock.testing import EmbeddedNodes
from tests.support.waiting import in_time

from .handing import ADOPTER, GIVER, ORDERS, WAITER, Orders

ROOT: Final = Path(__file__).parents[3]
TTL, SKEW = 3.0, 0.5  # seconds
FAR: Final = 0.015  # seconds from a client to a node, and back again
OPERATED: Final = 0.15  # of the leases are revoked
END: Final = 60.0  # seconds in which a process ends what it does
# What must have happened in a play of two minutes.
LEAST: Final = {
    "handles adopted": 40,
    "heals undone": 5,
    "revokes": 5,
    "min_holds": 5,
    "nodes killed": 3,
    "nodes stopped": 3,
    "processes killed": 3,
    "processes stopped": 5,
}
CROWD: Final = {GIVER: 2, ADOPTER: 2, WAITER: 2}  # processes
Line = dict[str, Any]


@dataclass(frozen=True)
class Play:
    """What is to be played.

    Attributes:
        seconds: how long, at most.
        handles: how many are given away before it ends, at most; 0: as many as come.
        faults: whether nodes and processes are stopped and killed.
        broken: whether a heal that is undone wakes a waiter, and the play ends with a lost handle.
    """

    seconds: float = 600.0
    handles: int = 0
    nodes: int = 5
    faults: bool = True
    broken: bool = False
    seed: int = field(default_factory=lambda: random.randrange(1 << 30))


class Outcome(NamedTuple):
    """How it went.

    Attributes:
        figures: how often what happened.
        wrong: what must not have happened.
    """

    figures: dict[str, int]
    wrong: list[str]


# -- the judge ------------------------------------------------------------------------------------


class Held(NamedTuple):
    """A lease as its history has it; moments are seconds of one clock."""

    name: str
    fence: int
    since: float
    begins: float
    ends: float
    nodes: frozenset[int]


def judge(history: Sequence[Line], beliefs: Sequence[Line], nodes: int) -> Outcome:
    """Look for what must not be in the history of so many nodes."""
    lines: dict[str, list[Line]] = defaultdict(list)
    for line in history:
        lines[line["what"]].append(line)
    last: dict[str, float] = {}
    for line in beliefs:
        last[line["lease"]] = max(line["moment"], last.get(line["lease"], 0.0))
    leases = {
        line["lease"]: Held(
            line["name"],
            line["fence"],
            line["since"],
            line["moment"],
            max(line["moment"], last.get(line["lease"], 0.0)),
            frozenset(line["nodes"]),
        )
        for line in lines["has"]
    }
    wrong = [*_beside_each_other(leases, lines)]
    fates: Counter[str] = Counter()
    for line in lines["gave"]:
        fate = _fate(line, leases, lines, nodes)
        fates[fate] += 1
        if fate in (LOST, TWICE):
            wrong.append(f"the handle of {line['lease']} for {line['name']}: {fate}")
    wrong += [f"a process ended with {each['status']}: {each['log']}" for each in lines["failed"]]
    figures = {
        "leases": len(leases),
        **{f"by {kind}s": sum(line["how"] == kind for line in lines["has"]) for kind in CROWD},
        "heals": len(lines["heals"]),
        "heals undone": len(lines["rolls back"]),
        "min_holds": len(lines["rests"]),
        "waiters that gave up": len(lines["gives up"]),
        "revokes": sum(line["done"] for line in lines["revoked"]),
        "nodes killed": len(lines["killed"]),
        "nodes stopped": len(lines["stopped"]),
        "processes killed": len(lines["ended by force"]),
        "processes stopped": len(lines["made to wait"]),
        "handles": len(lines["gave"]),
        **{f"handles {fate}": fates[fate] for fate in FATES},
        "wrong": len(wrong),
    }
    return Outcome(figures, wrong)


def _beside_each_other(leases: dict[str, Held], lines: dict[str, list[Line]]) -> Iterator[str]:
    """Yield what is wrong between two leases of one name."""
    until = {line["lease"]: line["until"] for line in lines["rests"]}
    by_name: dict[str, list[tuple[Held, str]]] = defaultdict(list)
    for which, held in leases.items():
        by_name[held.name].append((held, which))
    for name, all_of_it in by_name.items():
        ends = rested = 0.0
        before = ""
        fence = 0
        for held, which in sorted(all_of_it, key=lambda each: each[0].begins):
            if held.begins < ends:
                yield f"two believers in {name}: {before} and {which}"
            elif held.begins < rested and not _revoked(leases[before], held.begins, lines):
                yield f"the min_hold of {before} for {name} was cut short by {which}"
            if held.fence <= fence:
                yield f"the fence of {which} for {name} is not above that of {before}"
            ends, before, fence = max(ends, held.ends), which, held.fence
            rested = until.get(which, 0.0)  # an earlier rest is over, or was told above


def _revoked(held: Held, moment: float, lines: dict[str, list[Line]]) -> bool:
    """Tell whether somebody took a lease away before that moment, or while it rested."""
    ended = {line["number"]: line["moment"] for line in lines["revoked"]}
    return any(
        line["name"] == held.name
        and line["moment"] < moment
        and ended.get(line["number"], moment) > held.since
        for line in lines["revoking"]
    )


ADOPTED, TWICE, LOST = "adopted", "adopted twice", "lost"
EXPIRED, REVOKED, RESTARTED = "expired", "revoked", "of nodes that restarted"
UNTRIED, UNCLEAR = "that nobody tried", "of adopters that were killed, or beside each other"
FATES: Final = (ADOPTED, EXPIRED, REVOKED, RESTARTED, UNTRIED, UNCLEAR, TWICE, LOST)


def _fate(gave: Line, leases: dict[str, Held], lines: dict[str, list[Line]], nodes: int) -> str:
    """Return what became of a handle, or the first thing that explains why nobody has it."""
    tries, adopted, denied = (
        [line["moment"] for line in lines[what] if line["handle"] == gave["lease"]]
        for what in ("tries", "adopted", "denied")
    )
    held = leases.get(gave["lease"])
    if adopted or not tries:
        return (UNTRIED, ADOPTED, TWICE)[min(len(adopted), 2)]
    # Its giver was paused before it wrote that it had it, or an adopter has not written how it
    # ended, or gave back later what another one asked for.
    if held is None or len(denied) < len(tries) or sum(each < min(denied) for each in tries) > 1:
        return UNCLEAR
    if min(denied) >= gave["until"]:
        return EXPIRED
    return _explained(held, min(denied), lines, nodes)


def _explained(held: Held, denied: float, lines: dict[str, list[Line]], nodes: int) -> str:
    """Return why a handle could not be adopted at that moment: a revoke, restarts, or nothing."""
    if _revoked(held, denied, lines):
        return REVOKED
    # What missed a renewal has no key a ttl later.
    faults = lines["killed"] + (lines["stopped"] if denied - held.since >= TTL else [])
    away = {line["node"] for line in faults if held.since <= line["moment"] <= denied}
    return RESTARTED if len(held.nodes - away) <= nodes // 2 else LOST


# -- the nodes, some milliseconds away ------------------------------------------------------------


class Far:
    """A proxy before each node, by which each message comes a little later; a context manager."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports, self.ports = ports, list[int]()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        self.ports += asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> list[int]:
        self._servers = [await self._before(port) for port in self._ports]
        return [server.sockets[0].getsockname()[1] for server in self._servers]

    async def _before(self, port: int) -> asyncio.Server:
        async def pass_on(came: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
            with suppress(OSError, asyncio.CancelledError):  # cancelled: the play is over
                replies, node = await asyncio.open_connection("127.0.0.1", port)
                await asyncio.gather(_late(came, node), _late(replies, client))
            client.close()

        return await asyncio.start_server(pass_on, "127.0.0.1", 0)

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


async def _late(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Pass on what comes, in order, each piece a little later; then end the connection."""
    due = asyncio.Queue[tuple[float, bytes]]()

    async def read_on() -> None:
        data = b"."
        while data:
            try:
                data = await source.read(65536)
            except OSError:
                data = b""
            due.put_nowait((time.monotonic() + FAR, data))

    reading = asyncio.ensure_future(read_on())
    try:
        while True:
            moment, data = await due.get()
            await asyncio.sleep(max(0.0, moment - time.monotonic()))
            if not data:
                break
            target.write(data)
    finally:
        reading.cancel()
        target.close()


# -- the processes, the operator and the faults ---------------------------------------------------


class Site:
    """The processes of a play, an operator, and what befalls them."""

    def __init__(self, play: Play, folder: Path, nodes: EmbeddedNodes, locks: Line) -> None:
        self.play, self.folder, self.nodes, self.locks = play, folder, nodes, locks
        self.draw = random.Random(play.seed)
        self.there: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        self.started = 0
        self.over = threading.Event()
        self.history = Notebook(folder / "history")
        self.seen = Follower(folder / "history")
        self.lines: list[Line] = []

    def note(self, what: str, **more: Any) -> None:
        """Write into the history that all share."""
        self.history.write(what, moment=boottime(), **more)

    def start(self, kind: str, place: int) -> None:
        """Start a process, with a name and a file of beliefs that no other has."""
        self.started += 1
        name = f"{kind}{self.started}"
        orders = Orders(
            kind=kind,
            process=name,
            place=place,
            places=CROWD[kind],
            history=str(self.folder / "history"),
            beliefs=str(self.folder / f"{name}.beliefs"),
            stop=str(self.folder / "stop"),
            seed=f"{self.play.seed} {name}",
            ports=[node.port for node in self.nodes],
            ttl=TTL,
            broken=self.play.broken,
            locks=self.locks,
        )
        with (self.folder / f"{name}.log").open("wb") as log:
            self.there[kind, place] = subprocess.Popen(
                [sys.executable, "-m", "dev.soak.faults.handing"],
                cwd=ROOT,
                env=os.environ | {ORDERS: json.dumps(orders._asdict())},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def run(self) -> None:
        """Play until it is enough; then let the processes end."""
        for kind, count in CROWD.items():
            for place in range(count):
                self.start(kind, place)
        befalls = [self.operate, *((self.trouble_nodes, self.trouble_processes) * self.play.faults)]
        threads = [threading.Thread(target=each) for each in befalls]
        for thread in threads:
            thread.start()
        try:
            began = time.monotonic()
            while not self.is_enough() and time.monotonic() < began + self.play.seconds:
                time.sleep(0.2)
                self.lines += self.seen.new()
        finally:
            self.over.set()
            for thread in threads:
                thread.join()
        (self.folder / "stop").touch()
        in_time(lambda: all(each.poll() is not None for each in self.there.values()), END)
        for each in self.there.values():
            if each.poll():  # one that has not ended yet is slow
                self.note("failed", status=each.returncode, log=str(self.folder))

    def is_enough(self) -> bool:
        """Tell whether enough handles were given, or one of a broken variant is lost."""
        given = [line["what"] for line in self.lines].count("gave")
        if self.play.broken and any(line["what"] == "denied" for line in self.lines):
            return judge(self.lines, (), len(self.nodes)).wrong != []
        return 0 < self.play.handles <= given

    def operate(self) -> None:
        """Take leases away while they are held, or on their way to an adopter."""
        draw, number, told = random.Random(f"{self.play.seed} operator"), 0, 0
        while not self.over.wait(0.05):
            new, told = self.lines[told:], len(self.lines)
            for line in new:
                if line["what"] not in ("has", "gave") or draw.random() > OPERATED:
                    continue
                if self.over.wait(draw.uniform(0.0, 0.3)):
                    return
                number += 1
                self.note("revoking", name=line["name"], number=number)
                done = False
                with suppress(LookupError, NodesUnavailable):
                    done = bool(redlock.revoke(line["name"], reason="soak"))
                self.note("revoked", name=line["name"], number=number, done=done)

    def trouble_nodes(self) -> None:
        """Stop a node, or kill it and start it again, one after the other."""
        draw = random.Random(f"{self.play.seed} nodes")
        while not self.over.wait(draw.uniform(0.2, 2.0)):
            place = draw.randrange(len(self.nodes))
            if draw.random() < 0.6:
                self.note("stopped", node=place)
                self.nodes.pause(place)
                self.over.wait(draw.uniform(0.1, TTL / 2))
                self.nodes.resume(place)
            else:
                self.note("killed", node=place)
                self.nodes.kill(place)
                self.over.wait(draw.uniform(0.0, TTL))
                self.nodes[place].start()
                self.over.wait(TTL + SKEW + 1)  # its guard

    def trouble_processes(self) -> None:
        """Stop a process for longer than its leases last; some do not go on."""
        draw = random.Random(f"{self.play.seed} processes")
        while not self.over.wait(draw.uniform(0.5, 3.0)):
            at = draw.choice(sorted(self.there))
            victim = self.there[at]
            self.note("made to wait", process=f"{at}")
            os.kill(victim.pid, signal.SIGSTOP)
            self.over.wait(TTL * draw.uniform(0.2, 1.5))
            if draw.random() < 0.3 and not self.over.is_set():
                self.note("ended by force", process=f"{at}")
                victim.kill()
                victim.wait()
                self.start(*at)
            else:
                os.kill(victim.pid, signal.SIGCONT)

    def end(self) -> None:
        """Kill those that are left."""
        for each in self.there.values():
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGCONT)
            each.kill()
            each.wait()
        self.history.close()
        self.seen.close()


def perform(play: Play) -> Outcome:
    """Play it, and judge what was written down; the folder stays if something is wrong."""
    folder = Path(tempfile.mkdtemp(prefix="redlock-handles-"))
    with EmbeddedNodes(play.nodes) as nodes:
        settings = nodes.settings(MAX_TTL=TTL, CLOCK_SKEW=SKEW, NODE_TIMEOUT=0.3)
        with Far([node.port for node in nodes]) as far:
            locks = settings | {"NODES": [f"redis://127.0.0.1:{port}/0" for port in far.ports]}
            with django.test.override_settings(REDLOCK={"default": locks}):
                site = Site(play, folder, nodes, locks)
                try:
                    site.run()
                finally:
                    site.end()
    beliefs = [line for path in folder.glob("*.beliefs") for line in read(path)]
    outcome = judge(read(folder / "history"), beliefs, play.nodes)
    if outcome.wrong and not play.broken:
        print(f"the history is in {folder}")
    else:
        shutil.rmtree(folder)
    return outcome


def main() -> int:
    """Play, print, and judge; a broken variant must break a promise."""
    parser = verdict.parser("dev.soak.faults.handles", __doc__)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=10.0)
    length.add_argument("--seconds", type=float)
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--broken", action="store_true", help="a heal that is undone wakes waiters")
    options = parser.parse_args()
    if not django_settings.configured:
        django_settings.configure(REDLOCK={}, USE_TZ=True)
    django.setup()
    seconds = options.minutes * 60 if options.seconds is None else options.seconds
    outcome = perform(
        Play(seconds=seconds, nodes=options.nodes, broken=options.broken, seed=options.seed)
    )
    print(json.dumps(outcome.figures | {"seed": options.seed}))
    if options.broken:
        return verdict.end([], Played(len(outcome.wrong), 1, "broken promises"))
    played = (Played(outcome.figures[what], least, what) for what, least in LEAST.items())
    return verdict.end(outcome.wrong, *played)


if __name__ == "__main__":
    sys.exit(main())
