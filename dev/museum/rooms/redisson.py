"""Redisson's MultiLock and RedLock (Java), with the rules of 3.27.2 in Python.

A lock on one server is a hash: its field is the owner, its number how often the owner has locked
it. Where Redisson waits for a message that the lock is free, this looks again and again; Redisson
sends to a dead server several times, this does not.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import redis

from dev.museum import faults
from dev.museum.cell import LOST, POLL, STUCK, TWO, Hold, Lock, Setup, clients_of

# -- the recipes -----------------------------------------------------------------------------------

NONE = -1.0  # what Redisson takes for "not given"
LOCK: Final = """
if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[1]) == 1 then
    redis.call('hincrby', KEYS[1], ARGV[1], 1)
    redis.call('pexpire', KEYS[1], ARGV[2])
    return 1
end
return 0
"""
UNLOCK: Final = """
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return 0 end
if redis.call('hincrby', KEYS[1], ARGV[1], -1) > 0 then
    redis.call('pexpire', KEYS[1], ARGV[2])
else
    redis.call('del', KEYS[1])
end
return 1
"""
RENEW: Final = """
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return 0 end
return redis.call('pexpire', KEYS[1], ARGV[2])
"""


class ServerLock:
    """The lock on one server (RLock)."""

    def __init__(self, server: redis.Redis, name: str, owner: str, watchdog: float) -> None:
        self.server, self.name, self.owner = server, name, owner
        self.watchdog = watchdog  # seconds of a lease where none is given: 30 by default
        self.released = threading.Event()

    def run(self, script: str, seconds: float) -> bool:
        return bool(self.server.eval(script, 1, self.name, self.owner, round(seconds * 1000)))

    def try_lock(self, wait: float, lease: float) -> bool:
        """Lock it within the wait; without a lease, it is renewed."""
        end = time.monotonic() + wait
        seconds = self.watchdog if lease == NONE else lease
        while not self.run(LOCK, seconds):
            if time.monotonic() >= end:
                return False
            time.sleep(POLL)
        if lease == NONE:
            self.released = threading.Event()
            threading.Thread(target=self.renew, args=(self.released,), daemon=True).start()
        return True

    def renew(self, released: threading.Event) -> None:
        """Prolong the lease three times in its time; end where the lock is no longer ours."""
        while not released.wait(self.watchdog / 3):
            with suppress(redis.RedisError):
                if not self.run(RENEW, self.watchdog):
                    return  # nobody is told

    def unlock(self) -> None:
        """Count down, and delete the key at 0. Redisson raises where it is not ours."""
        self.released.set()
        with suppress(redis.RedisError):
            self.run(UNLOCK, self.watchdog)


class MultiLock:
    """All servers, one after the other, in what is left of the wait. No server may fail."""

    def __init__(self, setup: Setup) -> None:
        owner = f"{secrets.token_hex(16)}:1"  # of this process and thread, for all its locks
        self.locks = [
            ServerLock(server, setup.name, owner, setup.ttl) for server in clients_of(setup)
        ]
        self.lease = setup.ttl

    def failed_locks_limit(self) -> int:
        """Return how many servers may fail."""
        return 0

    def lock_wait(self, left: float) -> float:
        """Return how much of the wait one server may take."""
        return left

    def acquire(self, wait: float) -> Hold | None:
        """Lock it; its user hears that it is locked, and not until when."""
        return Hold() if self.try_lock(wait or NONE, self.lease) else None

    def try_lock(self, wait: float, lease: float) -> bool:
        """Lock the servers; where too many fail, unlock them, and begin again if there is time."""
        first_lease = lease if NONE in (wait, lease) else 2 * wait
        end = time.monotonic() + wait
        limit, index = self.failed_locks_limit(), 0
        locked: list[ServerLock] = []
        while index < len(self.locks):
            lock, index = self.locks[index], index + 1
            left = wait if wait == NONE else end - time.monotonic()
            if self.try_one(lock, min(self.lock_wait(wait), left), first_lease):
                locked.append(lock)
            elif len(self.locks) - len(locked) == self.failed_locks_limit():
                break  # those that are locked are enough
            elif limit > 0:
                limit -= 1
            else:
                self.unlock_all(locked)
                if wait == NONE:
                    return False
                locked, limit, index = [], self.failed_locks_limit(), 0
            if wait != NONE and time.monotonic() >= end:
                self.unlock_all(locked)
                return False
        if lease != NONE:
            for lock in locked:  # whoever owns the key by now
                lock.server.pexpire(lock.name, round(lease * 1000))
        return True

    def try_one(self, lock: ServerLock, wait: float, lease: float) -> bool:
        """Lock one server; an error is a failure."""
        try:
            return lock.try_lock(wait, lease)
        except redis.TimeoutError:
            lock.unlock()
        except redis.RedisError:
            time.sleep(POLL)
        return False

    def unlock_all(self, locks: Sequence[ServerLock]) -> None:
        for lock in locks:
            lock.unlock()

    def release(self) -> None:
        """Unlock all servers, also those that were not locked."""
        self.unlock_all(self.locks)


class RedLock(MultiLock):
    """A minority of the servers may fail, and each may take its part of the wait."""

    def failed_locks_limit(self) -> int:
        """Return how many servers are no majority."""
        return len(self.locks) - (len(self.locks) // 2 + 1)

    def lock_wait(self, left: float) -> float:
        """Divide the wait among the servers."""
        return max(left / len(self.locks), 0.001) if left != NONE else NONE


class WatchedRedLock(RedLock):
    """A RedLock without a lease: the watchdog renews it on each server by itself."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.lease = NONE


# -- what is counted -------------------------------------------------------------------------------

MULTI = Lock("redisson-multilock", "Redisson MultiLock", MultiLock, servers=3)
RED = Lock("redisson-redlock", "Redisson RedLock", RedLock, servers=3)
WATCHED = Lock("redisson-watchdog", "Redisson RedLock, watchdog", WatchedRedLock, servers=3)
NO_END = "Nobody tells the client until when it has the lock, and it goes on."
ALL = "All servers must give the lock, so nobody gets it while one is down."
NO_TIME = "It counts the servers, and not the time that asking them has taken."
ONE_OWNER = "Its owner is the same for each attempt, so an old unlock fits the new lock."
FORGOTTEN = "A server that has forgotten the lock gives it to the next one."
PROMOTED = "A promoted replica that has not heard of the lock gives it to the next one."
STOOD_STILL = "The watchdog stood still with its process, and the client goes on."
SILENT = "The watchdog ends silently on each server where its key is gone; nobody is told."
RENEWS = "The watchdog renews as long as the process lives, whatever its work does."
CELLS = [
    *MULTI.holds(*faults.USUAL, faults.restarted_one),
    MULTI.breaks(faults.paused, TWO, LOST, why=NO_END),
    MULTI.breaks(faults.minority, STUCK, why=ALL),
    *RED.holds(
        *faults.USUAL, faults.minority, faults.lost_reply, faults.restarted_one, faults.split
    ),
    RED.breaks(faults.paused, TWO, LOST, why=NO_END),
    RED.breaks(faults.stopped_acquiring, TWO, LOST, why=NO_TIME),
    RED.breaks(faults.release_on_its_way, TWO, LOST, why=ONE_OWNER),
    RED.breaks(faults.restarted, TWO, LOST, why=FORGOTTEN),
    RED.breaks(faults.failover_lagging, TWO, LOST, why=PROMOTED),
    *WATCHED.holds(*faults.USUAL),
    WATCHED.breaks(faults.paused, TWO, LOST, why=STOOD_STILL),
    WATCHED.breaks(faults.one_by_one, TWO, LOST, why=SILENT),
    WATCHED.breaks(faults.hangs, STUCK, why=RENEWS),
]
