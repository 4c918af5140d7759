"""What was to be reached. A goal for a figure that no part measures is a mistake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .result import Result
from .turns import Spread


class Goal(NamedTuple):
    """A bound for a figure: the most it may be, or with ``least`` the least."""

    figure: str
    bound: float
    least: bool = False

    @property
    def text(self) -> str:
        """The bound, for people."""
        return f"{'≥' if self.least else '≤'} {self.bound:g}"

    def met(self, reached: float) -> bool:
        """Whether a value is within the bound."""
        return reached >= self.bound if self.least else reached <= self.bound


GOALS = (
    Goal("threads ÷ sockets", 1.5),
    Goal("unpinned: threads ÷ sockets", 1.2),
    Goal("unpinned: threads ÷ plain sockets", 1.75),
    Goal("redlock-py ÷ threads", 2.5, least=True),
    Goal("redlock-ng, threads ÷ threads", 1.3, least=True),
    Goal("pottery, threads ÷ threads", 5, least=True),
    Goal("threads ÷ node-redlock 4", 1.4),
    Goal("threads ÷ node-redlock 5 beta", 1.4),
    Goal("1000 tasks: locks per second, asyncio ÷ redlock-ng", 10, least=True),
    Goal("from a start, 1000 tasks: locks per second, asyncio ÷ redlock-ng", 10, least=True),
    Goal("unpinned: 1000 tasks, as it is: locks per second ÷ redlock-ng", 8, least=True),
    Goal("unpinned: 1000 tasks, all settings: locks per second ÷ redlock-ng", 10.5, least=True),
    Goal("unpinned: 8 threads: locks per second ÷ 1 thread", 1, least=True),
    Goal("÷ 7047006, unpinned: 8 threads", 1),
    Goal("÷ 7047006, unpinned: many tasks, client's processor", 0.62),
    Goal("cyclic garbage of 1,000 locks, threads", 0),
    Goal("cyclic garbage of 1,000 locks, asyncio, one task", 0),
    Goal("cyclic garbage of 1,000 locks, asyncio, 1,000 tasks", 0),
    Goal("bytes of a held lease, threads", 2000),
    Goal("bytes of a held lease, asyncio", 2000),
    Goal("bytes left of a released lease, threads", 8),
    Goal("bytes left of a released lease, asyncio", 8),
    Goal("import django_redlock, above Django and redis-py, ms", 60),
    Goal("unpinned: one node: threads ÷ redis-py Lock", 1.15),
    Goal("1 ms away: threads, round trips to acquire", 1.2),
    Goal("1 ms away: asyncio, round trips to acquire", 1.2),
    Goal("one node hung ÷ all well, threads", 1.05),
    Goal("one node hung ÷ all well, asyncio", 1.05),
    Goal("messages to acquire, to each node", 1),
    Goal("messages to release, to each node", 1),
    Goal("8 waiters: turns ÷ the ideal", 0.85, least=True),
    Goal("8 waiters: turns ÷ sockets by hand", 0.96, least=True),
    Goal("8 waiters: wait, p99, ms", 50),
    Goal("8 waiters: fewest ÷ most turns", 0.95, least=True),
    Goal("8 waiters: messages for a turn", 16),
    Goal("8 waiters: release to the next one's return, ms", 1.5),
    Goal("50 waiters: turns ÷ the ideal", 0.7, least=True),
    Goal("50 waiters: fewest ÷ most turns", 0.7, least=True),
    Goal("50 waiters ÷ 8: messages for a turn", 1.25),
    Goal("queue's node hung: longest wait, s more", 1),
    Goal("queue's node hung: fewest turns of a process meanwhile", 1, least=True),
    # 10,000 leases with a ttl of 30 s, which are due every 10 s
    Goal("1,000 leases renewed a second, threads: share of a core", 0.15),
    Goal("1,000 leases renewed a second, asyncio: share of a core", 0.15),
    Goal("@single_flight ÷ with redlock(...)", 1.5),
    Goal("@locked_task ÷ with redlock(...)", 1.5),
    Goal("publish with a mark ÷ plain publish", 2),
    Goal("a locked task: adds ÷ a bare lock", 1.5),
    Goal("with a completion record: adds ÷ a bare lock", 2),
    *(
        Goal(f"{name}: @idempotent ÷ @single_flight, SELECT, INSERT, UPDATE", 1.3)
        for name in ("SQLite", "PostgreSQL", "MariaDB")
    ),
    # 10,000 locks among 1,000,000 keys of others on each node
    Goal("redlock_status, s", 2),
    Goal("redlock_status --json of all locks, s", 2),
    Goal("a page of the admin, s", 0.3),
    Goal("one node hung: redlock_status, s more", 0.5),
    Goal("one node hung: redlock_status --json of all locks, s more", 0.5),
    Goal("one node hung: a page of the admin, s more", 0.5),
    Goal("PING of others meanwhile, p99, ms", 10),
    *(
        goal
        for name in ("SQLite", "PostgreSQL", "MariaDB")
        for goal in (
            Goal(f"{name}: fenced update ÷ plain update", 1.1),
            Goal(f"{name}: claim, read, update ÷ select_for_update, update", 1.5),
        )
    ),
)


class Verdict(NamedTuple):
    """A goal, and what was reached; None: not measured in this run."""

    goal: Goal
    reached: Spread | None

    @property
    def text(self) -> str:
        """Met or not, for people."""
        if self.reached is None:
            return "not measured"
        return "met" if self.goal.met(self.reached.median) else "MISSED"


def judge(results: Sequence[Result]) -> list[Verdict]:
    """A verdict on each goal."""
    figures = {name: value for result in results for name, value in result.figures.items()}
    return [Verdict(goal, figures.get(goal.figure)) for goal in GOALS]
