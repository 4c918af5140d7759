"""The ``REDLOCK`` setting, made into backends by alias; the only reader of settings.

    REDLOCK = {"default": {"NODES": ["redis://10.0.0.1:6379/0", …], "TTL": 30, …}, …}

Every mistake is an ``ImproperlyConfigured`` that names the alias and the key and quotes no URL.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.core.cache import InvalidCacheBackendError, caches
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.asyncio import async_unsafe

from django_redlock.core.policy import Policy

from .backend import Backend, Group
from .concurrency.forking import call_in_child
from .core.names import check_alias
from .fanout.group import NodeGroup
from .setting_values import check_values
from .transactions import in_transaction
from .transport.address import Address, from_options, from_url
from .transport.admission import skew_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DEFAULTS: Final[dict[str, Any]] = {
    "NODES": (),
    "TTL": 30,
    "MAX_TTL": 60,
    "WAIT": 0,
    "RENEW": True,
    "MAX_HOLD": None,
    "NODE_TIMEOUT": 0.05,
    "CLOCK_DRIFT": 0.01,
    "CLOCK_SKEW": 10,
    "KEY_PREFIX": "redlock:",
    "RESTART_GUARD": True,
    "OPTIONS": {},
}
NODE_KEYS: Final = frozenset({"URL", "USERNAME", "PASSWORD", "CACHE"})
MEMORY: Final = "memory://"
UPTIME_STEP: Final = 1.0  # seconds: nodes tell their uptime in whole ones

_backends: dict[str, Backend] = {}
_making = threading.RLock()


def backend(alias: str) -> Backend:
    """The backend of an alias, made at its first use and kept until settings change.

    Raises:
        ImproperlyConfigured: the setting is missing or wrong; the text says where.
        TypeError: an alias is a text, and this is none.
    """
    check_alias(alias)
    found = _backends.get(alias)
    if found is None:
        with _making:
            found = _backends.get(alias)
            if found is None:
                found = _backends[alias] = make(alias, _setting(alias))
    return found


def aliases() -> Iterator[str]:
    """The names under which nodes are configured.

    Raises:
        ImproperlyConfigured: ``REDLOCK`` is missing or no dictionary.
    """
    return iter(_all())


def _all() -> Mapping[str, Any]:
    configured = getattr(settings, "REDLOCK", None)
    if not isinstance(configured, dict):
        msg = "set REDLOCK to a dictionary: {'default': {'NODES': ['redis://…', …]}}"
        raise ImproperlyConfigured(msg)
    return configured


def _setting(alias: str) -> Mapping[str, Any]:
    configured = _all()
    if alias not in configured:
        known = ", ".join(map(repr, configured)) or "none"
        msg = f"REDLOCK has no alias {alias!r}; it has: {known}"
        if DEFAULTS.keys() & configured.keys():
            msg = "REDLOCK has settings where aliases belong: REDLOCK = {'default': {'NODES': […]}}"
        raise ImproperlyConfigured(msg)
    if not isinstance(configured[alias], dict):
        msg = f"REDLOCK[{alias!r}] must be a dictionary: {{'NODES': ['redis://…', …]}}"
        raise ImproperlyConfigured(msg)
    return configured[alias]  # type: ignore[no-any-return]


def make(alias: str, setting: Mapping[str, Any]) -> Backend:
    """A backend of one alias's settings; opens no connection.

    Raises:
        ImproperlyConfigured: a key is unknown or its value makes no sense.
    """
    where = f"REDLOCK[{alias!r}]"
    unknown = [key for key in setting if key not in DEFAULTS]
    if unknown:
        msg = f"{where} has unknown keys {unknown}; known are: {', '.join(DEFAULTS)}"
        raise ImproperlyConfigured(msg)
    values = DEFAULTS | dict(setting)
    check_values(where, values)
    policy = Policy(
        size=len(values["NODES"]),
        max_ttl=values["MAX_TTL"],
        drift=values["CLOCK_DRIFT"],
        slack=values["CLOCK_SKEW"] / 2,  # the other half is for clients among themselves
        prefix=values["KEY_PREFIX"],
    )
    made = Backend(
        alias,
        _group(alias, values),
        policy,
        ttl=values["TTL"],
        wait=values["WAIT"],
        renew=values["RENEW"],
        max_hold=values["MAX_HOLD"],
        in_transaction=in_transaction,
        refuse_event_loop=refuse_event_loop,
    )
    try:
        made.check_ttl(made.ttl)
    except ValueError as error:
        msg = f"{where}['TTL']: {error}"
        raise ImproperlyConfigured(msg) from None
    return made


def _group(alias: str, values: Mapping[str, Any]) -> Group:
    where = f"REDLOCK[{alias!r}]"
    nodes = values["NODES"]
    guard = 0.0
    if values["RESTART_GUARD"]:
        guard = values["MAX_TTL"] + values["CLOCK_SKEW"] + UPTIME_STEP
    in_memory = [isinstance(node, str) and node.startswith(MEMORY) for node in nodes]
    if any(in_memory):
        if not all(in_memory):
            msg = (
                f"{where}['NODES'] mixes memory:// with real nodes: write all or none as memory://"
            )
            raise ImproperlyConfigured(msg)
        _distinct(where, nodes)
        from .fanout.memory.group import MemoryNodes

        return MemoryNodes.named(nodes)
    found = []
    for position, node in enumerate(nodes):
        try:
            found.append(_address(node, values["OPTIONS"]))
        except ValueError as error:
            msg = f"{where}['NODES'][{position}]: {error}"
            raise ImproperlyConfigured(msg) from None
    _distinct(where, [address.identity for address in found])
    return NodeGroup(
        found,
        timeout=values["NODE_TIMEOUT"],
        guard=guard,
        skew=skew_of(values["CLOCK_SKEW"]),
        prefix=values["KEY_PREFIX"],
        alias=alias,
    )


def _distinct(where: str, identities: list[str]) -> None:
    for position, identity in enumerate(identities):
        first = identities.index(identity)
        if first != position:
            msg = (
                f"{where}['NODES'][{position}] is the same server as NODES[{first}]; a majority "
                "needs independent ones (another database number does not make one)"
            )
            raise ImproperlyConfigured(msg)


def _address(node: object, options: Mapping[str, Any]) -> Address:
    if isinstance(node, str):
        return from_url(node, options=options)
    if not isinstance(node, dict):
        msg = f"a node is a URL or a dictionary, not {type(node).__name__}"
        raise ValueError(msg)  # noqa: TRY004 - the caller adds where and raises its own
    unknown = set(node) - NODE_KEYS
    if unknown:
        msg = f"unknown keys {sorted(map(str, unknown))}; known are: {', '.join(sorted(NODE_KEYS))}"
        raise ValueError(msg)
    if "CACHE" in node:
        if len(node) > 1:
            msg = "CACHE names a cache alias and goes with no other key"
            raise ValueError(msg)
        if not isinstance(node["CACHE"], str):
            msg = f"CACHE must be a cache alias, not {type(node['CACHE']).__name__}"
            raise ValueError(msg)
        return _cache(node["CACHE"], options)
    if not isinstance(node.get("URL"), str):
        msg = "the dictionary needs a URL or a CACHE"
        raise ValueError(msg)  # noqa: TRY004 - the caller adds where and raises its own
    for key in ("USERNAME", "PASSWORD"):
        if not isinstance(node.get(key), str | None):
            msg = f"{key} must be text, not {type(node[key]).__name__}"
            raise ValueError(msg)  # noqa: TRY004 - the caller adds where and raises its own
    return from_url(
        node["URL"],
        username=node.get("USERNAME"),
        password=node.get("PASSWORD"),
        options=options,
    )


def _cache(alias: str, options: Mapping[str, Any]) -> Address:
    """Where the cache of django-redis with this alias has its server."""
    try:
        from django_redis import get_redis_connection
    except ImportError:
        msg = "CACHE needs django-redis: pip install 'django-redlock[django-redis]'"
        raise ValueError(msg) from None
    try:
        caches[alias]
        pool = get_redis_connection(alias).connection_pool
    except InvalidCacheBackendError:
        msg = f"CACHES has no alias {alias!r}"
        raise ValueError(msg) from None
    except (AttributeError, NotImplementedError):
        msg = (
            f"the cache {alias!r} is not one of django-redis: its BACKEND in CACHES must be "
            "django_redis.cache.RedisCache"
        )
        raise ValueError(msg) from None
    kept = {
        key: value
        for key, value in pool.connection_kwargs.items()
        if key in {"host", "port", "path", "db", "username", "password"} or key.startswith("ssl_")
    }
    return from_options(pool.connection_class, {**kept, **options})


@async_unsafe(
    "You cannot take a lock by blocking calls from an async context - use 'async with', or "
    "aacquire, atry_acquire, aadopt."
)
def refuse_event_loop() -> None:
    """Raise SynchronousOnlyOperation where an event loop runs, as the ORM does."""


def forget() -> None:
    """Make every backend anew at its next use; leases keep the one they were made with."""
    with _making:
        old = list(_backends.values())
        _backends.clear()
    for each in old:
        each.group.close()


def _changed(*, setting: str, **_: object) -> None:
    if setting in {"REDLOCK", "CACHES"}:
        forget()


def _after_fork() -> None:
    global _making  # noqa: PLW0603 - the state of this module
    _making = threading.RLock()


call_in_child(_after_fork)
setting_changed.connect(_changed, dispatch_uid="django_redlock.conf")
