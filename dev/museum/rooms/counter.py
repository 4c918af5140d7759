"""A counter on each server: each admits up to k, and a majority decides."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from string import ascii_uppercase
from typing import TYPE_CHECKING, Final

import redis

from dev.museum import faults
from dev.museum.cell import MANY, Hold, Lock, Setup, clients_of, fault, poll

if TYPE_CHECKING:
    from dev.museum.stage import Stage

# -- the recipe ------------------------------------------------------------------------------------

ENTER: Final = """
if redis.call('incr', KEYS[1]) > tonumber(ARGV[1]) then
    redis.call('decr', KEYS[1])
    return 0
end
redis.call('pexpire', KEYS[1], ARGV[2])
return 1
"""


class CounterOnEachServer:
    """INCR and DECR on all servers at once; in is who a majority of them admits."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.servers = setup, clients_of(setup)
        self.pool = ThreadPoolExecutor(len(self.servers))

    def acquire(self, wait: float) -> Hold | None:
        """Make attempts until one works; the time of a hold counts from before its attempt."""
        hold = poll(self.attempt, wait)
        return hold and Hold(self.began + self.setup.ttl)

    def attempt(self) -> bool:
        """Ask all servers; leave those that agreed, if they are too few."""
        self.began = time.monotonic()
        votes = list(self.pool.map(self.enters, self.servers))
        self.inside = [server for server, vote in zip(self.servers, votes, strict=True) if vote]
        is_in = len(self.inside) >= majority(len(self.servers))
        if not is_in:
            self.release()
        return is_in

    def enters(self, server: redis.Redis) -> bool:
        """Count up on one server, unless k are in."""
        k, px = str(self.setup.limit), str(self.setup.milliseconds)
        with suppress(redis.RedisError):
            return bool(server.eval(ENTER, 1, self.setup.name, k, px))
        return False

    def release(self) -> None:
        """Count down where it was counted up."""
        for server in self.inside:
            with suppress(redis.RedisError):
                server.decr(self.setup.name)


# -- the fault -------------------------------------------------------------------------------------


def majority(servers: int) -> int:
    """Return how many servers must agree."""
    return servers // 2 + 1


def most(servers: int, quorum: int, limit: int) -> int:
    """Return how many clients get in where each server admits ``limit`` and ``quorum`` decide.

    The servers have ``limit * servers`` votes together. So k is kept only if k + 1 quorums need
    more than these: ``(k + 1) * quorum > k * servers``.
    """
    return limit * servers // quorum


def schedule(servers: int, quorum: int, limit: int) -> list[set[int]]:
    """Return the servers that admit each client, where as many clients get in as can.

    They are dealt to one client after the other, around the circle.
    """
    clients = range(most(servers, quorum, limit))
    return [{(client * quorum + each) % servers for each in range(quorum)} for client in clients]


@fault(ttl=faults.LONG, patience=1)
def each_in_its_order(stage: Stage) -> None:
    """More ask at once than may, and each server hears them in an order of its own."""
    servers = len(stage.nodes)
    admitted = schedule(servers, majority(servers), stage.limit)
    names = ascii_uppercase[: len(admitted)]
    clients = stage.clients(names, is_proxied=True, timeout=faults.PATIENT)
    stage.wait_until_quiet()
    for client in clients:
        for index in range(servers):
            stage.proxy(client, index).holding = 1
        client.tell("acquire", wait=faults.SHORTLY)
    proxies = [stage.proxy(client, index) for client in clients for index in range(servers)]
    stage.wait_for(lambda: all(proxy.held for proxy in proxies), "all requests")
    for index in range(servers):
        heard = sorted(zip(admitted, clients, strict=True), key=lambda each: index not in each[0])
        stage.let_go_in_order([client for _, client in heard], index)
    inside = [client for client in clients if client.has_it()]
    assert len(inside) >= stage.limit
    for client in inside:
        client.release()


# -- what is counted -------------------------------------------------------------------------------

FIVE = Lock("counter", "A counter on each of five servers", CounterOnEachServer, 5, limit=2)
THREE = Lock("counter-of-three", "A counter on each of three servers", CounterOnEachServer, 3, 2)
ENOUGH_VOTES = (
    "Nothing has failed. Servers that admit two each have two votes each, and all these votes"
    " together are enough for three majorities."
)
CELLS = [
    *FIVE.holds(faults.full),
    FIVE.breaks(each_in_its_order, MANY, why=ENOUGH_VOTES),
    *THREE.holds(faults.full),
    THREE.breaks(each_in_its_order, MANY, why=ENOUGH_VOTES),
]
