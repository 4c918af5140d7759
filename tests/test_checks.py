"""The system checks W012 to W023.

Those before are in ``tests/test_bad_input.py``.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any

import pytest
import redis
from django.core.checks import WARNING, CheckMessage
from django.core.management import call_command
from django.test import override_settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_redlock import checks
from django_redlock.checks import check_deployment, check_settings
from tests.support.addresses import explained

SECRET = "s3cr3t"
THREE = ["redis://a", "redis://b", "redis://c"]


@contextmanager
def configured(caches: dict[str, Any] | None = None, **alias: Any) -> Iterator[None]:
    """The alias ``default`` with these settings, and CACHES."""
    local = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    alias = {"NODES": THREE} | alias
    with (
        override_settings(CACHES=local | (caches or {})),
        override_settings(REDLOCK={"default": alias}),
    ):
        yield


def told(deploy: bool = False, **settings: Any) -> list[CheckMessage]:
    """What ``check`` reports, or what ``--deploy`` adds; each with an action and no password."""
    with configured(**settings):
        found = check_deployment() if deploy else check_settings()
    for message in found:
        assert message.level == WARNING
        assert "REDLOCK['default']" in message.msg
        assert message.hint
        assert explained(message.hint)
        assert message.hint.split()[0] in {
            *("Use", "Write", "Set", "Name", "Remove", "Raise", "Lower", "Give", "Begin")
        }
        assert SECRET not in f"{message!r} {message}"
    return found


def ids(deploy: bool = False, **settings: Any) -> list[str]:
    """The numbers of what is reported."""
    return [str(each.id).removeprefix("django_redlock.") for each in told(deploy, **settings)]


def test_w012_two_nodes():
    """django_redlock.W012: with two nodes either one that fails stops every lock; not W002."""
    (message,) = told(NODES=THREE[:2])
    assert message.id == checks.W012
    assert "when either is down, no lock can be taken" in message.msg
    assert ids(NODES=[*THREE, "redis://d"]) == ["W002"]
    assert ids(NODES=THREE[:1]) == []


def test_w014_a_ttl_that_a_request_uses_up():
    """django_redlock.W014: a renewal may take as long as there is time between two of them."""
    (message,) = told(TTL=2, NODE_TIMEOUT=1)
    assert message.id == checks.W014
    assert "TTL to 10 or more" in str(message.hint)
    assert ids(TTL=3, NODE_TIMEOUT=1) == []
    memory = [f"memory://w014-{number}" for number in range(3)]
    assert ids(NODES=memory, TTL=2, NODE_TIMEOUT=1) == []


def test_w015_a_max_hold_that_ends_nothing():
    """django_redlock.W015: MAX_HOLD below TTL does not end a lease earlier."""
    (message,) = told(MAX_HOLD=10, TTL=30)
    assert message.id == checks.W015
    assert ids(MAX_HOLD=30, TTL=30) == []


DJANGOS, OTHERS = "django.core.cache.backends.redis.RedisCache", "django_redis.cache.RedisCache"
SHARING: list[dict[str, Any]] = [
    {"BACKEND": DJANGOS, "LOCATION": "redis://b:6379"},
    {"BACKEND": DJANGOS, "LOCATION": f"redis://x;redis://u:{SECRET}@b/0"},
    {"BACKEND": DJANGOS, "LOCATION": ["redis://x", "rediss://B./0"]},
    {"BACKEND": OTHERS, "LOCATION": f"redis://:{SECRET}@b:6379/0?socket_timeout=5"},
    {"BACKEND": OTHERS, "LOCATION": "redis://b", "OPTIONS": {"PASSWORD": SECRET}},
    {"BACKEND": "django_valkey.cache.ValkeyCache", "LOCATION": "valkey://b/0"},
]
APART: list[dict[str, Any]] = [
    {"BACKEND": DJANGOS, "LOCATION": "redis://b/1"},
    {"BACKEND": DJANGOS, "LOCATION": "redis://b", "OPTIONS": {"db": "1"}},
    {"BACKEND": OTHERS, "LOCATION": "redis://b", "OPTIONS": {"CONNECTION_POOL_KWARGS": {"db": 1}}},
    {"BACKEND": DJANGOS, "LOCATION": "redis://b:6380"},
    {"BACKEND": DJANGOS, "LOCATION": f"redis://:{SECRET}#@b:port"},
    {"BACKEND": "django.core.cache.backends.filebased.FileBasedCache", "LOCATION": "/var/b"},
    {"BACKEND": "django.core.cache.backends.db.DatabaseCache", "LOCATION": None, "OPTIONS": None},
]


@pytest.mark.parametrize("cache", SHARING, ids=str)
def test_w016_a_cache_in_the_database_of_a_node(cache):
    """django_redlock.W016 (FM-14): its clear() would delete the locks that are held."""
    (message,) = told(caches={"pages": cache})
    assert message.id == checks.W016
    assert "CACHES['pages']" in message.msg
    assert "NODES'][1] (b:6379/0)" in message.msg


@pytest.mark.parametrize("cache", APART, ids=str)
def test_w016_is_not_for_another_database(cache):
    """Another database, another server, another kind of cache, or one that cannot be read."""
    assert ids(caches={"pages": cache}) == []


def test_w016_a_cache_that_is_named_as_a_node():
    """A cache named for locks is no mistake; the default cache is one, and so is a second one."""
    cache = {"BACKEND": OTHERS, "LOCATION": "redis://b"}
    nodes = ["redis://a", {"CACHE": "locks"}, "redis://c"]
    assert ids(caches={"locks": cache}, NODES=nodes) == []
    (message,) = told(caches={"locks": cache, "pages": cache}, NODES=nodes)
    assert "CACHES['pages']" in message.msg
    nodes[1] = {"CACHE": "default"}
    assert ids(caches={"default": cache}, NODES=nodes) == ["W016"]


@pytest.mark.parametrize("server", ["redis://{}:6379/0", "redis://{}"])
def test_w016_tells_the_truth(redlock_nodes, server):
    """``cache.clear()`` of a cache that the check names empties the node's database."""
    from django.core.cache import caches

    node = redlock_nodes[0]
    location = f"redis://localhost:{node.port}"
    with configured({"pages": {"BACKEND": DJANGOS, "LOCATION": location}}, NODES=[node.url]):
        (message,) = check_settings()
        assert message.id == checks.W016
        with node.client() as client:
            client.set("redlock:lock:w016", "somebody", px=60_000)
            caches["pages"].clear()
            assert client.dbsize() == 0


@pytest.mark.parametrize(
    "url",
    [
        "redis://8.8.8.8",
        "redis://user:s3cr3t@[2a00:1450::1]/0",
        "redis://locks.example.com:6380",
        "redis://locks.internal.example.com",
    ],
)
def test_w017_without_tls_to_somewhere(url):
    """django_redlock.W017: the password goes over the network in the clear; with --deploy only."""
    (message,) = told(deploy=True, NODES=["redis://a", url, "redis://c"])
    assert message.id == checks.W017
    assert "rediss://" in str(message.hint)
    assert "W017" not in ids(NODES=["redis://a", url, "redis://c"])
    assert ids(deploy=True, NODES=[url.replace("redis://", "rediss://")]) == []


@pytest.mark.parametrize(
    "url",
    [
        *("redis://localhost", "redis://127.0.0.2", "redis://[::1]", "unix:///run/a.sock"),
        *("redis://10.1.2.3", "redis://172.16.0.1", "redis://192.168.1.1", "redis://[fd00::1]"),
        *("redis://100.64.0.9", "redis://169.254.1.1", "redis://[::ffff:10.0.0.1]"),
        *("redis://node-1", "redis://a.local", "redis://a.ns.svc.cluster.local", "redis://a.lan."),
    ],
)
def test_w017_is_not_for_private_places(url):
    """This machine, a socket, private addresses, and names that one network alone knows."""
    assert ids(deploy=True, NODES=[url]) == []


@pytest.mark.parametrize(
    "options",
    [
        {"ssl_cert_reqs": "none"},
        {"ssl_cert_reqs": None},
        {"ssl_cert_reqs": ssl.CERT_NONE},
        {"ssl_check_hostname": False},
    ],
    ids=str,
)
def test_w018_tls_that_verifies_nothing(options):
    """django_redlock.W018: by OPTIONS or in the URL; with --deploy only."""
    nodes = ["rediss://a"]
    (message,) = told(deploy=True, NODES=nodes, OPTIONS=options)
    assert message.id == checks.W018
    assert ids(NODES=nodes, OPTIONS=options) == []
    for good in ({}, {"ssl_cert_reqs": "required"}, {"ssl_cert_reqs": ssl.CERT_REQUIRED}):
        assert ids(deploy=True, NODES=nodes, OPTIONS=good) == []


@pytest.mark.parametrize("query", ["ssl_cert_reqs=none", "ssl_check_hostname=false"])
def test_w018_in_a_url(query):
    """The query of a URL says it as well."""
    assert ids(deploy=True, NODES=[f"rediss://a/0?{query}"]) == ["W018"]


def test_w019_a_restart_guard_of_hours():
    """django_redlock.W019: MAX_TTL as long as the work makes each restart of a node cost that."""
    (message,) = told(deploy=True, MAX_TTL=86_400)
    assert message.id == checks.W019
    assert "86411 s" in message.msg
    assert ids(MAX_TTL=86_400) == []
    assert ids(deploy=True, MAX_TTL=3589) == []
    assert ids(deploy=True, NODES=THREE[:1], MAX_TTL=86_400, RESTART_GUARD=False) == []


def test_w020_a_drift_that_clocks_have():
    """django_redlock.W020: CLOCK_DRIFT below what clocks drift by lets two holders rely on one."""
    (message,) = told(CLOCK_DRIFT=0)
    assert message.id == checks.W020
    assert ids(CLOCK_DRIFT=0.0002) == []


def test_w019_names_the_setting_that_is_too_long():
    """It is CLOCK_SKEW as well as MAX_TTL that the guard counts on."""
    (message,) = told(deploy=True, CLOCK_SKEW=7200)
    assert message.id == checks.W019
    assert "['CLOCK_SKEW'] is 7200 s" in message.msg
    assert (message.hint or "").startswith("Lower CLOCK_SKEW")


MILLISECONDS: dict[str, tuple[dict[str, Any], str]] = {
    "all": (
        {"TTL": 30_000, "MAX_TTL": 60_000, "WAIT": 5000},
        "'TTL': 30, 'MAX_TTL': 60, 'WAIT': 5",
    ),
    "skew": ({"CLOCK_SKEW": 10_000}, "'CLOCK_SKEW': 10"),
    "hold": ({"MAX_HOLD": 3_600_000}, "'MAX_HOLD': 3600"),
    "timeout": ({"NODE_TIMEOUT": 50, "TTL": 60, "MAX_TTL": 600}, "'NODE_TIMEOUT': 0.05"),
}


@pytest.mark.parametrize("case", MILLISECONDS)
def test_w023_milliseconds_as_seconds(case):
    """django_redlock.W023: what is allowed and hardly meant is told with what was meant."""
    settings, meant = MILLISECONDS[case]
    message = next(each for each in told(**settings) if each.id == checks.W023)
    assert f": {meant}. See " in (message.hint or "")


@pytest.mark.parametrize(
    "settings",
    [
        {"TTL": 3600, "MAX_TTL": 7200},
        {"MAX_HOLD": 36_000},
        {"MAX_HOLD": 86_400, "WAIT": 90},
        {"WAIT": float("inf"), "MAX_HOLD": float("inf")},
        {"NODE_TIMEOUT": 2},
    ],
    ids=str,
)
def test_w023_is_not_for_what_is_meant(settings):
    """Hours, a night's work, no end, slow nodes."""
    assert ids(**settings) == []


@pytest.mark.django_db  # Django 6.1 asks the databases, too
@pytest.mark.parametrize("silenced", [[], ["django_redlock.W012"]])
def test_a_check_can_be_silenced(silenced):
    """``SILENCED_SYSTEM_CHECKS`` takes a warning that was considered out of the output."""
    output = StringIO()
    with configured(NODES=THREE[:2]), override_settings(SILENCED_SYSTEM_CHECKS=silenced):
        call_command("check", stdout=output, stderr=output)
    assert ("django_redlock.W012" in output.getvalue()) == (not silenced)


def test_no_check_contacts_anybody(monkeypatch):
    """A system check opens no connection and looks no name up, of caches neither."""
    contacted: list[Any] = []
    ours = {"locks.example.com", "elsewhere.example.com", ("127.0.0.1", 1)}

    def watch(owner: Any, name: str) -> None:
        """Record and refuse calls for these addresses; threads of other tests call for others."""
        through = getattr(owner, name)

        def watched(*args: Any, **options: Any) -> Any:
            if ours.isdisjoint(args):
                return through(*args, **options)
            contacted.append(args)
            raise OSError("a check contacts somebody")

        monkeypatch.setattr(owner, name, watched)

    watch(socket.socket, "connect")
    watch(socket, "getaddrinfo")
    watch(socket, "gethostbyname")
    nodes = ["redis://locks.example.com", {"CACHE": "locks"}, "rediss://127.0.0.1:1"]
    caches = {"locks": {"BACKEND": OTHERS, "LOCATION": "redis://elsewhere.example.com"}}
    assert ids(caches=caches, NODES=nodes) == []
    assert ids(deploy=True, caches=caches, NODES=nodes) == ["W017"]
    assert contacted == []
    for url in (nodes[0], nodes[2], caches["locks"]["LOCATION"]):  # who does contact them is seen
        with pytest.raises(redis.ConnectionError, match="a check contacts"):
            redis.Redis.from_url(str(url), retry=Retry(NoBackoff(), 0)).ping()
