"""What docs/how-to/migrate.md says of other locks is so: by their real packages, and by ours."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from threading import Thread
from typing import Any, cast

import pytest
import redis.lock
from django.core.cache import cache
from django.test import override_settings
from redis.exceptions import LockError

from benchmarks.peers import PeerUnavailable, python
from benchmarks.peers.environments import PYTHON_PEERS, ROOT
from django_redlock import LeaseLost, LockTaken, redlock
from django_redlock.leases.lease import Lease
from django_redlock.locks.lock import Lock
from django_redlock.testing import EmbeddedNodes
from tests.django.conftest import memory
from tests.docs.tables import codes, table
from tests.docs.test_docs import blocks
from tests.support.waiting import eventually

__all__ = ["memory"]

PAGE = "docs/how-to/migrate.md"
# The column of the first table, and the environment that has the package.
COLUMNS = {
    "`cache.lock`, redis-py": "django-redis",
    "python-redis-lock": "python-redis-lock",
    "redlock-py": "redlock-py",
    "pottery": "pottery",
}
SECTIONS = {"`cache.lock`, and redis-py's `Lock`": "django-redis"}  # else as the column
TAKEN = "somebody else charges it"

# Each makes a lock by `made(name, seconds)`, and tells what the first table says.
MAKING = {
    "django-redis": """\
from redis import Redis
client = Redis.from_url(NODES[0])
def made(name, seconds=None):
    return client.lock(name, timeout=seconds)
def key(name):
    return name
""",
    "python-redis-lock": """\
from redis import Redis
from redis_lock import Lock
client = Redis.from_url(NODES[0])
def made(name, seconds=None):
    return Lock(client, name, expire=seconds)
def key(name):
    return f"lock:{name}"
""",
    "pottery": """\
from pottery import Redlock
from redis import Redis
client = Redis.from_url(NODES[0])
def made(name, seconds=None):
    more = {} if seconds is None else {"auto_release_time": seconds}
    return Redlock(key=name, masters={Redis.from_url(url) for url in NODES}, **more)
def key(name):
    return f"redlock:{name}"
""",
}
LOOKING = """\
import json, threading
told = {}
lock = made("a")
with lock:
    told["lasts"] = client.pttl(key("a"))
    waiter = threading.Thread(target=lambda: made("a").acquire(), daemon=True)
    waiter.start()
    waiter.join(1.5)
    told["waits"] = waiter.is_alive()
waiter.join(20)
told["served"] = not waiter.is_alive()
try:
    with made("b", 30):
        for url in NODES:
            Redis.from_url(url).delete(key("b"))
    told["lost"] = "nothing"
except Exception as error:
    told["lost"] = type(error).__name__
print(json.dumps(told))
"""
LOOKING_AT_REDLOCK_PY = """\
import json, time
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redlock import MultipleRedlockException, Redlock
redlock = Redlock(NODES)
told = {}
lock = redlock.lock("a", 30_000)
began = time.monotonic()
told["second"] = redlock.lock("a", 30_000)
told["seconds"] = time.monotonic() - began
told["validity"] = lock.validity
for url in NODES:
    Redis.from_url(url).delete("a")
told["released"] = redlock.unlock(lock)
down = Redis(port=1, retry=Retry(NoBackoff(), 0))  # else redis-py asks for seconds
redlock.servers[0] = down
try:
    redlock.lock("b", 30_000)
except MultipleRedlockException as error:
    told["down"] = type(error).__name__
told["stays"] = [Redis.from_url(url).pttl("b") > 0 for url in NODES]
redlock.servers = [down] * 3
told["nobody"] = redlock.lock("c", 30_000)
print(json.dumps(told))
"""


@pytest.fixture
def nodes(patient_nodes: EmbeddedNodes) -> list[str]:
    """Three nodes, for the clients and for us."""
    return [node.url for node in patient_nodes[:3]]


def told(peer: str, program: str, nodes: list[str], folder: Path) -> str:
    """What a program prints in the environment of a peer."""
    try:
        interpreter = python(peer)
    except PeerUnavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    path = folder / "program.py"
    path.write_text(f"NODES = {json.dumps(nodes)}\n{program}")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("DJANGO")}
    ended = subprocess.run(
        [str(interpreter), str(path)],
        env=environment,
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    )
    return ended.stdout.decode()


def cell(row: str, column: str) -> str:
    """A cell of the first table."""
    page = table(PAGE, "", "`cache.lock`, redis-py")
    (found,) = [each for each in page.rows if each[0] == row]
    return found[page.header.index(column)]


# -- the first table ------------------------------------------------------------------------------


@pytest.mark.slow  # the first one of a client installs it
@pytest.mark.parametrize("column", [each for each in COLUMNS if each != "redlock-py"])
def test_what_the_table_says_of_a_lock(nodes, tmp_path, column):
    """It waits for ever, lasts as long as said, and tells of its loss at the end as said."""
    peer = COLUMNS[column]
    found = json.loads(told(peer, MAKING[peer] + LOOKING, nodes, tmp_path))
    assert cell("The name is taken", column) == "waits for ever"
    assert found["waits"]
    assert found["served"]
    lasts = cell("Without a time it ends", column)
    if lasts == "never":
        assert found["lasts"] == -1
    else:
        assert 0 < found["lasts"] <= float(lasts.split()[1]) * 1000
        assert found["lasts"] > float(lasts.split()[1]) * 500
    assert codes(cell("The lock was lost: the block's end", column)) == [found["lost"]]


@pytest.mark.slow
def test_what_the_table_says_of_redlock_py(nodes, tmp_path):
    """It gives up after three attempts, and a node that is down costs the name for a ttl."""
    found = json.loads(told("redlock-py", LOOKING_AT_REDLOCK_PY, nodes, tmp_path))
    assert cell("The name is taken", "redlock-py") == "tries 3 times, 0.2 s apart, then `False`"
    assert found["second"] is False
    assert 0.4 <= found["seconds"] < 10
    assert 20_000 < found["validity"] < 30_000
    assert found["released"] is None
    assert cell("The lock was lost: the block's end", "redlock-py") == "says nothing"
    assert codes(cell("One node of several is down", "redlock-py")) == [found["down"]]
    assert found["stays"] == [False, True, True]
    assert cell("No answer is", "redlock-py") == "`False`, as if it were taken"
    assert found["nobody"] is False


def test_what_the_table_says_of_this_package(memory):
    """Taken is told at once, a lost lease is known before the end and told there on request."""

    def lose(**options: Any) -> None:
        with redlock("b", **options) as lease:
            for node in memory.nodes:
                node.keys.clear()
            with pytest.raises(LeaseLost):
                lease.extend()
            assert lease.lost

    with redlock("a") as lease:
        with pytest.raises(LockTaken):
            redlock("a").acquire()
        Thread(target=lease.release).start()  # any thread may
        eventually(lambda: redlock("a").try_acquire())
    lose()
    with pytest.raises(LeaseLost):
        lose(on_lost="raise")
    row = cell("The lock was lost: the block's end", "django-redlock")
    assert row == 'says nothing; with `on_lost="raise"` it raises `LeaseLost`'


def test_the_calls_of_redis_py_are_there():
    """Each call of the table is a method with these arguments, on its side."""
    for old, new in table(PAGE, "redis-py", "here").rows:
        for code in codes(old):
            if "(" in code:
                call: Any = ast.parse(code, mode="eval").body
                taken = inspect.signature(getattr(redis.lock.Lock, call.func.attr)).parameters
                assert {each.arg for each in call.keywords} <= taken.keys(), code
            else:
                name = code.partition("=")[0]
                assert name in inspect.signature(redis.lock.Lock).parameters, code
        for owner, method in re.findall(r"`(lock|lease)\.(\w+)\(", new):
            assert callable(getattr({"lock": Lock, "lease": Lease}[owner], method))


def test_the_versions_of_the_table():
    """They are those of the environments."""
    shown = {column: cell("Tested with", column).split(" and ") for column in COLUMNS}
    for column, peer in COLUMNS.items():
        pins = [pin.partition("==")[2] for pin in PYTHON_PEERS[peer]]
        assert shown[column][0] == pins[0]
    assert shown["`cache.lock`, redis-py"][1] == PYTHON_PEERS["redis"][0].partition("==")[2]


# -- the examples ---------------------------------------------------------------------------------


def sections() -> Iterator[tuple[str, str, str]]:
    """A peer, its "before" and our "after", for each section with both."""
    for section in (ROOT / PAGE).read_text().split("\n## From ")[1:]:
        title = section.partition("\n")[0]
        before, _, after = section.partition("# after\n")
        if after:
            text = before.partition("# before\n")[2].partition("```")[0]
            yield SECTIONS.get(title, title), text, after.partition("```")[0]


DJANGO = """\
import django
from django.conf import settings
settings.configure(CACHES={"default": {
    "BACKEND": "django_redis.cache.RedisCache", "LOCATION": NODES[0]}})
django.setup()
"""


@pytest.mark.slow
@pytest.mark.parametrize("peer", [peer for peer, _, _ in sections()])
def test_before_and_after(nodes, tmp_path, peer):
    """Both charge an order, and both say so when another one is charging it."""
    ((before, after),) = [each[1:] for each in sections() if each[0] == peer]
    keys = {"django-redis": ":1:charge:7", "python-redis-lock": "lock:charge:7"}
    program = (DJANGO if peer == "django-redis" else "") + before
    program += f"""\
print(charge(7))
from redis import Redis
for url in NODES:
    Redis.from_url(url).set({keys.get(peer, "charge:7")!r}, "another", px=30_000)
print(charge(7))
"""
    assert told(peer, program, nodes, tmp_path) == f"charged\n{TAKEN}\n"
    names: dict[str, Any] = {}
    exec(after, names)  # noqa: S102 - our own page
    assert names["charge"](7) == "charged"
    with redlock("charge:7"):
        assert names["charge"](7) == TAKEN


# -- while both run -------------------------------------------------------------------------------


@pytest.fixture
def releases(patient_nodes: EmbeddedNodes) -> Iterator[dict[int, Callable[[], Any]]]:
    """What each release takes, by its number; the cache is on a node of its own."""
    (block,) = [each for each in blocks(ROOT / PAGE) if each.file]
    names: dict[str, Any] = {}
    exec(block.text, names)  # noqa: S102 - our own page
    location, old = patient_nodes[4].url, cast("Any", cache)
    backend = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location}
    with override_settings(CACHES={"default": backend}):
        yield {
            1: lambda: old.lock("a", timeout=30, blocking_timeout=0.1),
            2: lambda: names["both"]("a", wait=0.1),
            3: lambda: redlock("a"),
        }
        with closing(patient_nodes[4].client()) as client:
            client.delete(":1:a")


def excludes(first: AbstractContextManager[Any], second: AbstractContextManager[Any]) -> bool:
    """Whether the second is refused while the first is held, and let in afterwards."""
    refused = False
    with first:
        try:
            with second:
                pass
        except (LockTaken, LockError):
            refused = True
    return refused


def test_the_releases_of_a_deployment(releases):
    """Each release excludes those that the table says, and no other: 1 and 3 may never meet."""
    page = table(PAGE, "Release", "Takes", "Excludes")
    for number, _, excluded in page.rows:
        shown = {int(word) for word in excluded.replace(",", " ").split() if word.isdigit()}
        for other in releases:
            made = releases[int(number)](), releases[other]()
            assert excludes(*made) == (other in shown), (number, other)
        with releases[int(number)]():  # a refusal has left nothing
            pass
