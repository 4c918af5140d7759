"""Take leases away at random moments of their life, and look for two that believe in one name.

    make soak ARGS=revoke          200 leases
    make soak ARGS="revoke --now"  by deletion: shows the second believers

Meanwhile one of five nodes is killed and started again, or stopped, in turns. Each name has a
holder that renews and a rival that waits for it.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import django
import django.test
from django.conf import settings as django_settings

from dev.soak import verdict
from dev.soak.verdict import Played
from django_redlock import LeaseLost, LockTaken, NodesUnavailable, redlock
from django_redlock.testing import EmbeddedNodes

TTL = 3.0  # seconds
SKEW = 0.5
AT_ONCE = 20  # names
PATIENCE = 60.0  # seconds for a rival, far above what a ttl lasts


@dataclass
class Seen:
    """What the plays showed; seconds in lists.

    Attributes:
        believers: names in which a rival had its lease while the holder still believed in one.
        told: from the success of a revoke until the holder knew.
        free: from there until the rival had the name.
        missed: revokes without a majority, each of which was tried again.
        codes: why the leases were lost.
        unplayed: leases that were not got in time, or whose rival was not.
    """

    believers: list[str] = field(default_factory=list)
    told: list[float] = field(default_factory=list)
    free: list[float] = field(default_factory=list)
    missed: int = 0
    codes: set[str] = field(default_factory=set)
    unplayed: int = 0


def play(number: int, seen: Seen, *, now: bool) -> None:
    """One holder, one rival, and one who takes the lock away at some moment."""
    name, rng = f"taken:{number}", random.Random(number)
    told = threading.Event()
    lease = redlock(
        name, ttl=TTL, wait=PATIENCE, renew=True, on_lost=lambda _: told.set()
    ).acquire()
    with ThreadPoolExecutor(1) as rivals:

        def rival() -> float:
            got = redlock(name, ttl=TTL, wait=PATIENCE, renew=False).acquire()
            if lease.remaining() > 0:
                seen.believers.append(name)
            moment = time.monotonic()
            got.release()
            return moment

        waiting = rivals.submit(rival)
        time.sleep(rng.uniform(0, 2 * TTL))
        began = revoked(name, seen, now=now)
        if told.wait(PATIENCE):
            seen.told.append(time.monotonic() - began)
        try:
            lease.ensure()
        except LeaseLost as error:
            seen.codes.add(error.code)
        # It does not let go: the name must come free by itself.
        seen.free.append(waiting.result() - began)
    lease.release()


def revoked(name: str, seen: Seen, *, now: bool) -> float:
    """Take it away, as often as that needs; when it was done."""
    while True:
        try:
            if redlock.revoke(name, reason="soak", now=now):
                return time.monotonic()
        except NodesUnavailable:
            pass
        except LookupError:  # it has ended by itself: too few of its nodes were left
            return time.monotonic()
        seen.missed += 1


def trouble(nodes: EmbeddedNodes, over: threading.Event) -> None:
    """Kill a node or let it hang, one after the other, until the plays are over."""
    rng = random.Random(5)
    while not over.is_set():
        place = rng.randrange(len(nodes))
        if rng.random() < 0.5:
            nodes.pause(place)
            over.wait(2 * TTL / 3)
            nodes.resume(place)
        else:
            nodes[place].kill()
            over.wait(TTL)
            nodes[place].restart()
        over.wait(TTL + SKEW + 2)  # its guard


def play_if_possible(number: int, seen: Seen, *, now: bool) -> None:
    """Play it; on a slow machine somebody may not get the lease in time."""
    try:
        play(number, seen, now=now)
    except (LockTaken, NodesUnavailable):
        seen.unplayed += 1


def plays(leases: int, *, now: bool = False) -> Seen:
    """Play so many leases."""
    seen, over = Seen(), threading.Event()
    with EmbeddedNodes(5) as nodes:
        settings = nodes.settings(MAX_TTL=TTL, CLOCK_SKEW=SKEW, NODE_TIMEOUT=0.3)
        with django.test.override_settings(REDLOCK={"default": settings}):
            time.sleep(TTL + SKEW + 1)  # the guard of new nodes
            with redlock("warm", wait=PATIENCE):
                pass
            faults = threading.Thread(target=trouble, args=(nodes, over))
            faults.start()
            try:
                with ThreadPoolExecutor(AT_ONCE) as threads:
                    jobs = [
                        threads.submit(play_if_possible, i, seen, now=now) for i in range(leases)
                    ]
                    for job in jobs:
                        job.result()
            finally:
                over.set()
                faults.join()
    return seen


def main() -> int:
    """Play, print, and judge: no two believe in one name, but by deletion some must."""
    parser = verdict.parser("dev.soak.faults.revoking", __doc__)
    parser.add_argument("--leases", type=int, default=200)
    parser.add_argument("--now", action="store_true", help="by deletion")
    options = parser.parse_args()
    if not django_settings.configured:
        django_settings.configure(REDLOCK={}, USE_TZ=True)
    django.setup()
    seen = plays(options.leases, now=options.now)
    print(f"{options.leases} leases, {len(seen.believers)} with two believers")
    print(
        f"told within {max(seen.told, default=0):.1f} s (ttl {TTL:g} s), {len(seen.told)} of them"
    )
    print(f"free within {max(seen.free, default=0):.1f} s; {seen.missed} revokes were tried again")
    print(f"codes: {', '.join(sorted(seen.codes))}")
    if options.now:
        return verdict.end([], Played(len(seen.believers), 1, "second believers"))
    played = Played(options.leases - seen.unplayed, options.leases, "leases taken away")
    return verdict.end([f"two believed in {name}" for name in seen.believers], played)


if __name__ == "__main__":
    sys.exit(main())
