"""Other people's locks, unchanged; the versions are those of benchmarks/peers/environments.py."""

from __future__ import annotations

from museum.checker import Break
from museum.exhibits import Exhibit
from museum.runs import asking, clocks, holders, network, outages, servers

from .cell import Cell, breaks, holds

HERE = "museum.others"
REDLOCK_PY = Exhibit(
    "redlock-py", "redlock-py 1.0.8", f"{HERE}.redlock_py:RedlockPy",
    servers=3, peer="redlock-py",
)  # fmt: skip
REDLOCK_NG = Exhibit(
    "redlock-ng", "redlock-ng 2.0.4", f"{HERE}.redlock_ng:RedlockNg",
    servers=3, peer="redlock-ng",
)  # fmt: skip
POTTERY = Exhibit("pottery", "pottery 3.0.1", f"{HERE}.pottery:Pottery", servers=3, peer="pottery")
NODE_4 = Exhibit("node-redlock-4", "node-redlock 4.2.0", "", servers=3, package="redlock-4")
NODE_5 = Exhibit("node-redlock-5", "node-redlock 5.0.0-beta.2", "", servers=3, package="redlock")
PYTHON_REDIS_LOCK = Exhibit(
    "python-redis-lock", "python-redis-lock 4.0.1", f"{HERE}.python_redis_lock:PythonRedisLock",
    peer="python-redis-lock",
)  # fmt: skip
REDIS_PY = Exhibit("redis-py", "redis-py 8.1.0, Lock", f"{HERE}.redis_py:RedisPy", peer="redis")
DJANGO_REDIS = Exhibit(
    "django-redis", "django-redis 7.0.0, cache.lock", f"{HERE}.django_redis:DjangoRedis",
    peer="django-redis",
)  # fmt: skip
FENCEKIT = Exhibit(
    "fencekit", "fencekit 0.6.1", f"{HERE}.fencekit:FenceKit", peer="fencekit"
)  # fmt: skip

EXHIBITS = [
    REDLOCK_PY, REDLOCK_NG, POTTERY, NODE_4, NODE_5, PYTHON_REDIS_LOCK, REDIS_PY, DJANGO_REDIS,
    FENCEKIT,
]  # fmt: skip
IN_TIME = "It measures how long the servers took, and refuses a lock whose time is over."
TAKEN_BACK = "It takes its votes back before it asks again, after a pause of a random length."
COMPARED = "It deletes the key only where its own value is in it."
NO_END = "It does not tell its user until when the lock is held, and nobody stops the late write."
WALL_CLOCK = (
    "It measures by the wall clock how long the servers took. When that is set back in between,"
    " the holder has the lock for 30 s by what it is told, and the servers keep it for the ttl."
)
NO_GUARD = (
    "A server that starts empty votes at once: also for the second of two majorities that have"
    " only this server in common."
)

CELLS: list[Cell] = [
    *holds(REDLOCK_PY, holders.TURNS, holders.KILLED),
    *holds(REDLOCK_PY, asking.STOPPED_IN_ACQUIRE, why=IN_TIME),
    breaks(
        REDLOCK_PY, outages.DOWN, Break.STUCK,
        why="One server that is down makes it raise, though it has the votes of the others. It"
        " leaves their keys, and so nobody gets the lock.",
    ),
    breaks(REDLOCK_PY, asking.SET_RIGHT, Break.TWO, why=WALL_CLOCK),

    *holds(REDLOCK_NG, holders.TURNS, outages.DOWN),
    *holds(REDLOCK_NG, asking.STOPPED_IN_ACQUIRE, why=IN_TIME),
    breaks(REDLOCK_NG, asking.SET_RIGHT, Break.TWO, why=WALL_CLOCK),
    breaks(REDLOCK_NG, servers.RESTARTED, Break.TWO, Break.LOST, why=NO_GUARD),

    *holds(POTTERY, holders.TURNS, holders.CROWD, outages.DOWN),
    *holds(POTTERY, asking.STOPPED_IN_ACQUIRE, why=IN_TIME),
    *holds(POTTERY, asking.VOTES_SPLIT, why=TAKEN_BACK),
    *holds(POTTERY, asking.SET_RIGHT, why="It measures with a clock that nobody sets."),
    breaks(POTTERY, servers.RESTARTED, Break.TWO, Break.LOST, why=NO_GUARD),

    *holds(NODE_4, holders.TURNS),
    *holds(NODE_4, asking.STOPPED_IN_ACQUIRE, why=IN_TIME),
    *holds(NODE_4, asking.VOTES_SPLIT, why=TAKEN_BACK),
    breaks(
        NODE_4, outages.DOWN, Break.STUCK,
        why="It waits for all servers, and ioredis 5.11.1 by default says after 20 attempts to"
        " connect, some 10 s, that one is down. Until then the ttl of 1 s is over.",
    ),
    breaks(NODE_4, asking.SET_RIGHT, Break.TWO, why=WALL_CLOCK),

    *holds(NODE_5, holders.TURNS, outages.DOWN),
    *holds(
        NODE_5, clocks.ASKS_AHEAD,
        why="Its expiration is a time of its own wall clock, and is compared with the same clock.",
    ),
    breaks(
        NODE_5, asking.STOPPED_IN_ACQUIRE, Break.LOST,
        why="It gives its user a lock whose time is over, with an expiration that has passed, and"
        " no error. Who does not look at that writes.",
    ),
    breaks(
        NODE_5, asking.VOTES_SPLIT, Break.STUCK,
        why="It does not take its vote back before it asks again, and its own key is then in its"
        " way: nobody gets a majority before the ttl is over.",
    ),
    breaks(NODE_5, asking.SET_RIGHT, Break.TWO, why=WALL_CLOCK),
    breaks(NODE_5, servers.RESTARTED, Break.TWO, Break.LOST, why=NO_GUARD),

    *holds(PYTHON_REDIS_LOCK, holders.TURNS, holders.CROWD),
    breaks(PYTHON_REDIS_LOCK, holders.PAUSED, Break.TWO, Break.LOST, why=NO_END),
    breaks(
        PYTHON_REDIS_LOCK, asking.WOKEN, Break.STUCK,
        why="A release wakes one waiter. If that one is stopped, the others sleep on until their"
        " BLPOP ends, up to a ttl, though the lock is free.",
    ),
    breaks(
        PYTHON_REDIS_LOCK, outages.EMPTIED, Break.TWO, Break.LOST,
        why="`reset_all`, which it offers for the start of an application, deletes the locks of"
        " those that live, too.",
    ),

    *holds(REDIS_PY, holders.TURNS, holders.KILLED),
    *holds(REDIS_PY, holders.STOPPED_IN_RELEASE, why=COMPARED),
    breaks(REDIS_PY, holders.PAUSED, Break.TWO, Break.LOST, why=NO_END),
    breaks(
        REDIS_PY, asking.STOPPED_IN_ACQUIRE, Break.TWO, Break.LOST,
        why="It takes a grant for good however late it comes.",
    ),
    breaks(
        REDIS_PY, network.LOST_REPLY, Break.STUCK,
        why="By default the client waits 5 s for the reply and asks again, and then its own key is"
        " in its way until the ttl is over.",
    ),
    breaks(
        REDIS_PY, servers.FAILOVER_LAGGING, Break.TWO, Break.LOST,
        why="The lock is on one server, and its replica has not heard of it.",
    ),

    *holds(DJANGO_REDIS, holders.TURNS),
    breaks(DJANGO_REDIS, holders.PAUSED, Break.TWO, Break.LOST, why=NO_END),
    breaks(
        DJANGO_REDIS, outages.EMPTIED, Break.TWO, Break.LOST,
        why="The lock is a key of the cache, and `cache.clear()` is FLUSHDB.",
    ),

    *holds(FENCEKIT, holders.TURNS),
    *holds(FENCEKIT, holders.STOPPED_IN_RELEASE, why=COMPARED),
    breaks(
        FENCEKIT, holders.PAUSED, Break.TWO,
        why="It does not tell its user until when the lock is held. The row refuses the late"
        " write, because it has a higher fence: no update is lost.",
    ),
    breaks(
        FENCEKIT, asking.STOPPED_IN_ACQUIRE, Break.TWO, Break.LOST, Break.FENCES,
        why="It takes a grant for good however late it comes. The row refuses a fence when a"
        " higher one has written; here the higher one has only read.",
    ),
    breaks(
        FENCEKIT, servers.RESTARTED, Break.TWO, Break.LOST, Break.FENCES,
        why="The counter is where the lock is: a server that starts empty gives the same fence"
        " again, and the row takes both.",
    ),
]  # fmt: skip
