"""A process that gives leases away, adopts them or waits for them; see ``handles``.

It follows the history to which all processes append: a waiter waits for what a giver has got, and
an adopter tries the handles that were given. What it believes it writes into a file of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dev.soak.notebook import Notebook

if TYPE_CHECKING:
    import redis

    from django_redlock.leases.lease import Lease

ORDERS: Final = "HANDING_ORDERS"
GIVER, ADOPTER, WAITER = "giver", "adopter", "waiter"
THREADS: Final = {GIVER: 5, ADOPTER: 4}
SAMPLE: Final = 0.05  # seconds between two lines of what it believes
LOOK: Final = 0.02  # seconds between two looks at the history
CROWD: Final = 60  # waiters of one process
PLANTED: Final = "somebody else's attempt"
UNPLANT: Final = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end"
)


class Orders(NamedTuple):
    """What such a process does.

    Attributes:
        kind: GIVER, ADOPTER or WAITER.
        process: its name, which no other has.
        place, places: which of so many of its kind it is: a handle is for one of them.
        history: the file to which all append.
        beliefs: a file that it alone writes.
        stop: a file; when it is there, the process ends.
        ports: of the nodes, without the proxies before them.
        ttl: of its leases, in seconds.
        broken: whether a heal that is undone wakes a waiter.
        locks: the alias.
    """

    kind: str
    process: str
    place: int
    places: int
    history: str
    beliefs: str
    stop: str
    seed: str
    ports: list[int]
    ttl: float
    broken: bool
    locks: dict[str, Any]


def follow(path: str, stop: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield the lines that were appended since the last look, until the end of the play."""
    rest = ""
    with Path(path).open() as file:
        file.seek(0, os.SEEK_END)
        while not stop.exists():
            *whole, rest = (rest + file.read()).split("\n")
            yield list(map(json.loads, whole))


class Player:
    """What the kinds have in common: notes, beliefs, and the heals that this process sends."""

    def __init__(self, orders: Orders) -> None:
        self.orders, self.stop = orders, Path(orders.stop)
        self.history, self.beliefs = Notebook(orders.history), Notebook(orders.beliefs)
        self.number = 0
        self.counting = threading.Lock()
        self.healing: dict[int, threading.Event] = {}  # by the id of a lease that is held
        self.watch_heals()

    def watch_heals(self) -> None:
        """Tell the giver of a lease that it is about to be healed; let the undo wake, if asked."""
        from django_redlock.core import hold
        from django_redlock.core.commands import Heal, Release
        from tests.simulation.mutants.rules import driven

        real = hold._heal

        def heal(policy: Any, lease: Any, *rest: Any) -> Any:
            def seen(effect: Any, _: bool) -> Any:
                if isinstance(effect, Heal):
                    self.history.write("heals")
                    if (told := self.healing.get(id(lease))) is not None:
                        told.set()
                else:
                    self.history.write("rolls back")
                    if self.orders.broken and isinstance(effect, Release):
                        effect = replace(effect, wake=None)
                return effect

            return driven(real(policy, lease, *rest), effect=seen)

        hold._heal = heal  # type: ignore[assignment]

    def has(self, lease: Lease, how: str, **more: Any) -> str:
        """Write down that this process has a lease; return the name of that in the history.

        Whoever was paused since may have lost it already: that is no belief.
        """
        from django_redlock.core.policy import boottime
        from django_redlock.core.quorum import YES, answer_of

        with self.counting:
            self.number += 1
            which = f"{self.orders.process}:{self.number}"
        moment, grant = boottime(), lease.grant
        self.history.write(
            "has" if lease.remaining() > 0 else "had",
            lease=which,
            name=lease.name,
            fence=lease.fence,
            since=grant.since,
            moment=moment,
            nodes=[i for i, vote in enumerate(grant.votes) if answer_of(vote) is YES],
            how=how,
            **more,
        )
        return which

    def believes(self, lease: Lease, which: str) -> bool:
        """Write down that this process believes in the lease now, if it does."""
        from django_redlock.core.policy import boottime

        moment = boottime()
        if lease.remaining() > 0:
            self.beliefs.write("believes", lease=which, moment=moment)
            return True
        return False

    def hold(self, lease: Lease, which: str, until: Callable[[float], bool]) -> None:
        """Believe, until that says that it is over, or the lease is."""
        began = time.monotonic()
        while self.believes(lease, which) and not until(time.monotonic() - began):
            time.sleep(SAMPLE / 4)

    def give(self, lease: Lease, which: str) -> None:
        """Give it away, and pass the handle to whoever reads the history."""
        from django_redlock import LeaseLost
        from django_redlock.core.policy import boottime

        self.believes(lease, which)
        until = boottime() + lease.remaining()
        try:
            text = lease.handle()
        except LeaseLost as error:
            self.history.write("lost", lease=which, code=error.code)
        else:
            self.history.write("gave", lease=which, name=lease.name, until=until, text=text)

    def end(self, lease: Lease, which: str) -> None:
        """Release it."""
        self.believes(lease, which)
        lease.release()
        code = lease.ending().code if lease.lost else ""
        self.history.write("ended", lease=which, name=lease.name, code=str(code))


# -- a giver --------------------------------------------------------------------------------------


def gives(player: Player, number: int) -> None:
    """Take a lease, mostly without the node of its queue, and give it away or release it.

    That node is another client's for a moment, as under contention, so a renewal heals the lease
    there. Most handles are made while this heal is on its way.
    """
    import redis

    orders, draw = player.orders, random.Random(f"{player.orders.seed} {number}")
    clients = [redis.Redis(port=port, socket_timeout=1) for port in orders.ports]
    turn = 0
    while not player.stop.exists():
        turn += 1
        fresh = f"{orders.process}-{number}-{turn}"
        name = fresh if draw.random() < 0.7 else f"hot:{draw.randrange(6)}"
        give(player, draw, clients, name)


def give(player: Player, draw: random.Random, clients: list[redis.Redis], name: str) -> None:
    """One lease of a giver."""
    import redis

    from django_redlock import LockTaken, NodesUnavailable, conf, redlock

    ttl = player.orders.ttl
    key = conf.backend("default").policy.target((name,))
    client, planted = clients[key.queue_nodes[0]], False
    if draw.random() < 0.8:
        with suppress(redis.RedisError):
            planted = bool(client.set(key.keys[0], PLANTED, nx=True, px=int(ttl * 1000)))
    min_hold = draw.choice((0.0, 0.0, ttl / 3))
    try:
        lease = redlock(name, ttl=ttl, wait=1.0, renew=True, min_hold=min_hold).acquire()
    except (LockTaken, NodesUnavailable):
        lease = None
    if lease is None:
        unplant(client, key.keys[0])
        return
    told = player.healing[id(lease)] = threading.Event()
    which = player.has(lease, GIVER)
    unplanting = draw.uniform(0.1, ttl / 4)
    moment = draw.uniform(0.05, ttl) if draw.random() < 0.3 or not planted else ttl
    late = draw.uniform(0.0, 0.05)

    def over(seconds: float) -> bool:
        nonlocal planted
        if planted and seconds > unplanting:
            unplant(client, key.keys[0])
            planted = False
        return seconds > moment or told.is_set()

    player.hold(lease, which, over)
    time.sleep(late)
    if planted:
        unplant(client, key.keys[0])
    if draw.random() < 0.75:
        player.give(lease, which)
    else:
        if min_hold:
            until = lease.grant.since + min_hold
            player.history.write("rests", lease=which, name=name, until=until)
        player.end(lease, which)
    del player.healing[id(lease)]


def unplant(client: redis.Redis, key: str) -> None:
    """Let the other client give up, if it is there."""
    import redis

    with suppress(redis.RedisError):
        client.eval(UNPLANT, 1, key, PLANTED)


# -- an adopter -----------------------------------------------------------------------------------


def adopts(player: Player, number: int) -> None:
    """Adopt the handles that are for this thread, and some that another one has as well."""
    orders, draw = player.orders, random.Random(f"{player.orders.seed} {number}")
    threads = THREADS[ADOPTER]
    mine, all_of_them = orders.place * threads + number, orders.places * threads
    for lines in follow(orders.history, player.stop):
        for line in lines:
            if line["what"] != "gave":
                continue
            first = sum(map(ord, line["lease"]))
            twice = first % 5 == 0
            if mine in (first % all_of_them, (first + 1) % all_of_them if twice else -1):
                time.sleep(draw.uniform(0.0, 0.5))  # the handle travels
                adopt(player, draw, line)
        time.sleep(LOOK)


def adopt(player: Player, draw: random.Random, line: dict[str, Any]) -> None:
    """One handle; it is tried again for as long as it is said to be good."""
    from django_redlock import LeaseLost, LockTaken, NodesUnavailable, redlock
    from django_redlock.core.policy import boottime

    handle, who = line["lease"], f"{player.orders.process}:{threading.get_ident()}"

    def note(what: str, **more: Any) -> None:
        player.history.write(what, handle=handle, adopter=who, moment=boottime(), **more)

    note("tries")
    while True:
        try:
            lease = redlock.using(ttl=player.orders.ttl).adopt(line["text"])
            break
        except LeaseLost as error:
            note("denied", code=error.code)
            return
        except (LockTaken, NodesUnavailable) as error:
            if boottime() > line["until"]:
                note("denied", code=error.code)
                return
            time.sleep(0.05)
    note("adopted")
    which = player.has(lease, ADOPTER, handle=handle)
    seconds = draw.uniform(0.05, player.orders.ttl * 0.7)
    player.hold(lease, which, lambda passed: passed > seconds)
    if draw.random() < 0.25:
        player.give(lease, which)
    else:
        player.end(lease, which)


# -- a waiter -------------------------------------------------------------------------------------


async def waits(player: Player) -> None:
    """Wait for the names that a giver has; some waiters are cancelled."""
    draw, waiting = random.Random(player.orders.seed), set[asyncio.Task[None]]()
    for lines in follow(player.orders.history, player.stop):
        for line in lines:
            if line["what"] == "has" and line["how"] == GIVER:
                for _ in range(draw.choice((0, 1, 1, 2))):
                    if len(waiting) < CROWD:
                        task = asyncio.ensure_future(wait(player, draw, line["name"]))
                        waiting.add(task)
                        task.add_done_callback(waiting.discard)
        await asyncio.sleep(LOOK)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def wait(player: Player, draw: random.Random, name: str) -> None:
    """One waiter, which may be cancelled whenever."""
    from django_redlock import LockTaken, NodesUnavailable, redlock

    ttl = player.orders.ttl
    patience = draw.uniform(0.5, 2.5) * ttl
    cancelled = draw.uniform(0.0, patience) if draw.random() < 0.4 else None
    min_hold, hold = draw.choice((0.0, 0.0, 0.5)), draw.uniform(0.0, 0.2)
    lock = redlock(name, ttl=ttl, wait=patience, renew=False, min_hold=min_hold)
    asking = asyncio.ensure_future(lock.aacquire())
    await asyncio.wait((asking,), timeout=cancelled)
    asking.cancel()
    try:
        lease = await asking
    except (asyncio.CancelledError, LockTaken, NodesUnavailable) as error:
        player.history.write("gives up", name=name, why=type(error).__name__)
        return
    which = player.has(lease, WAITER)
    await asyncio.sleep(hold)
    if min_hold:
        until = lease.grant.since + min_hold
        player.history.write("rests", lease=which, name=name, until=until)
    player.believes(lease, which)
    await lease.arelease()
    player.history.write("ended", lease=which, name=name, code="")


def main() -> int:
    """Play until the file is there that says stop."""
    import django
    from django.conf import settings

    orders = Orders(**json.loads(os.environ[ORDERS]))
    settings.configure(REDLOCK={"default": orders.locks}, INSTALLED_APPS=["django_redlock"])
    django.setup()
    player = Player(orders)
    player.history.write("plays", process=orders.process)
    if orders.kind == WAITER:
        asyncio.run(waits(player))
        return 0
    work = {GIVER: gives, ADOPTER: adopts}[orders.kind]
    failed: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(player, number)
        except BaseException as error:  # a thread that ended unseen would play nothing
            failed.append(error)
            raise

    threads = [
        threading.Thread(target=run, args=(number,)) for number in range(THREADS[orders.kind])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
