"""The short way of the grant script, for a single free name: its rules, and mistakes in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis

from django_redlock.core.protocol import Command
from django_redlock.nodes import scripts

FENCES, HELD, WAITS, LOCK = "short:fences", "short:held", "short:waits", "short:lock:a"
NONCES = [f"{number:032x}" for number in (1, 2, 3)]
OTHERS = f"{NONCES[1]}:5:x"
NEXT = "next::"
STEP = 20_000  # milliseconds
WIDE = 10**16  # microseconds


def ask_for_one(client: Any, text: str, *, word: str = "", waits: int = 0) -> Any:
    """Send a text of the grant script to the real node alone, for one name."""
    keys = (FENCES, HELD, WAITS, LOCK)
    args = (NONCES[0], 7, WIDE, STEP, "me", "", word and f"0:{word}", waits, "1", "a", "0")
    try:
        return client.eval(text, len(keys), *keys, *args)
    except redis.ResponseError as error:
        return str(error)


def stored(client: Any) -> tuple[Any, Any, bool]:
    """The key's value, the counter, and whether the index has the name; "other": no such type."""
    lock, fences, held = (client.type(key) for key in (LOCK, FENCES, HELD))
    return (
        "other" if lock == b"list" else client.get(LOCK),
        "other" if fences == b"list" else client.hget(FENCES, "1"),
        held == b"zset" and client.zscore(HELD, "a") is not None,
    )


NOTHING = (None, None, False)


def free_is_granted(client: Any, text: str) -> None:
    """A free name: the key, a counter of at least the number in it, and the index."""
    assert ask_for_one(client, text) == [NONCES[0].encode(), b"GRANTED", b"7"]
    assert stored(client) == (f"{NONCES[0]}:7:me".encode(), b"7", True)
    assert 0 < client.pttl(LOCK) <= STEP


def taken_is_refused(client: Any, text: str) -> None:
    """A name of another, or one that is reserved, stays as it is."""
    for value in (OTHERS, NEXT):
        client.set(LOCK, value)
        assert ask_for_one(client, text)[1] == b"HELD"
        assert stored(client) == (value.encode(), None, False)


def emptied_writes_nothing(client: Any, text: str) -> None:
    """A node without its epoch has no vote, and takes no key."""
    client.hdel(FENCES, "epoch")
    assert ask_for_one(client, text) == [NONCES[0].encode(), b"EMPTY"]
    assert stored(client) == NOTHING


def full_changes_nothing(client: Any, text: str) -> None:
    """Out of memory a free name is an error that changed nothing; a taken one is refused."""
    client.config_set("maxmemory", 1)
    for word in ("", NONCES[1]):
        assert "maxmemory" in ask_for_one(client, text, word=word)
        assert stored(client) == NOTHING
    client.config_set("maxmemory", 0)
    client.set(LOCK, f"{NONCES[2]}:5:x")
    client.config_set("maxmemory", 1)
    for word in ("", NONCES[1]):
        assert ask_for_one(client, text, word=word, waits=STEP)[1] == b"HELD"


def another_type_changes_nothing(client: Any, text: str) -> None:
    """A list where the key should be, or the counters: an error, and no counter is raised."""
    client.rpush(LOCK, "x")
    assert "WRONGTYPE" in ask_for_one(client, text)
    assert stored(client) == ("other", None, False)
    client.delete(LOCK, FENCES)
    client.rpush(FENCES, "x")
    assert "WRONGTYPE" in ask_for_one(client, text)
    assert stored(client) == (None, "other", False)


def no_number_changes_nothing(client: Any, text: str) -> None:
    """A counter that somebody overwrote: an error where the name is free, else a refusal."""
    client.hset(FENCES, "1", "x")
    assert "not a number" in ask_for_one(client, text)
    assert stored(client) == (None, b"x", False)
    client.set(LOCK, OTHERS)
    assert ask_for_one(client, text)[1] == b"HELD"


def denied_changes_nothing(client: Any, text: str) -> None:
    """A user that may not write the counter leaves no key without one."""
    client.execute_command("ACL SETUSER", "halved", "reset", "on", "nopass", "~*", "+@all", "-hset")
    address = client.connection_pool.connection_kwargs
    with redis.Redis(address["host"], address["port"], username="halved", password="x") as halved:
        told = ask_for_one(halved, text)
    client.execute_command("ACL DELUSER", "halved")
    assert stored(client) == NOTHING
    assert re.search("permissions|can't run this command", str(told))


def spoiled_index_leaves_a_counted_key(client: Any, text: str) -> None:
    """Where the index is another's, the error comes last: the key is there, and is counted."""
    client.rpush(HELD, "x")
    assert "WRONGTYPE" in ask_for_one(client, text)
    number = int(client.get(LOCK).split(b":")[1])
    assert int(client.hget(FENCES, "1")) >= number


CHECKS = (
    free_is_granted,
    taken_is_refused,
    emptied_writes_nothing,
    full_changes_nothing,
    another_type_changes_nothing,
    no_number_changes_nothing,
    denied_changes_nothing,
    spoiled_index_leaves_a_counted_key,
)
GRANT = scripts.TEXT[Command.GRANT]
MISTAKES = (
    ("set a name that is taken", "'NX', ", "", taken_is_refused),
    ("do not count", "type(redis.pcall('HSET', KEYS[1], ARGV[9], g))", "type(1)", free_is_granted),
    ("grant without asking for the epoch", "return {nonce, 'EMPTY'}", "", emptied_writes_nothing),
    ("take the error of a full node for all", "redis.pcall('SET'", "redis.call('SET'",
     full_changes_nothing),
    ("take an error for a grant", "set and set.ok", "set", full_changes_nothing),
    ("leave the key that is not counted", "redis.call('DEL', KEYS[4])", "", denied_changes_nothing),
    ("count from nothing", "tonumber(counters[i] or 0)", "tonumber(counters[i] or 0) or 0",
     no_number_changes_nothing),
)  # fmt: skip


@pytest.fixture
def client(redlock_embedded) -> Iterator[Any]:
    """A real node that is admitted and has no lock; it gets back what a check took from it."""
    redlock_embedded[0].start()  # a test may have left it dead
    with closing(redlock_embedded[0].client(socket_timeout=10)) as client:
        clear(client)
        client.hset(FENCES, "epoch", 0)
        yield client
        client.config_set("maxmemory", 0)
        clear(client)


def clear(client: Any) -> None:
    """Delete what a check makes."""
    client.delete(FENCES, HELD, WAITS, LOCK)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_short_way_keeps_the_rules(client, check):
    """What a single name gets is what several get, and an error changes nothing."""
    check(client, GRANT)


@pytest.mark.parametrize(
    ("mistake", "old", "new", "check"), MISTAKES, ids=lambda each: str(each)[:30]
)
def test_a_mistake_in_the_short_way_is_noticed(client, mistake, old, new, check):
    """Each rule of it, broken, is caught by its check."""
    assert GRANT.count(old) == 1, mistake
    with pytest.raises(AssertionError):
        check(client, GRANT.replace(old, new))
