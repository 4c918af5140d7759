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
from typing import Any, cast

import pytest
import redis.lock
from django.core.cache import cache
from django.test import override_settings
from redis.exceptions import LockError

from dev.benchmarks.peers import PeerUnavailable, python
from dev.benchmarks.peers.environments import ROOT
from django_redlock import LockTaken, redlock
from django_redlock.leases.lease import Lease
from django_redlock.locks.lock import Lock
from django_redlock.testing import EmbeddedNodes
from tests.django.conftest import memory
from tests.docs.pages import blocks, codes, table

__all__ = ["memory"]

PAGE = "docs/how-to/migrate.md"
# Else as the column.
SECTIONS = {"`cache.lock` of django-redis, and redis-py's `Lock`": "django-redis"}
TAKEN = "somebody else charges it"


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


# -- the first table ------------------------------------------------------------------------------


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
