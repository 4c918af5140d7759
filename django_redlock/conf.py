"""Make backends of the ``REDLOCK`` setting, by alias; the only module that reads settings.

    REDLOCK = {"default": {"NODES": ["redis://10.0.0.1:6379/0", …], "TTL": 30, …}, …}

Every mistake is an ``ImproperlyConfigured`` that names the alias and the key and quotes no URL.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from django.conf import settings
from django.core.cache import InvalidCacheBackendError, caches
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.asyncio import async_unsafe
from redis.cluster import RedisCluster
from redis.sentinel import SentinelManagedConnection

from django_redlock.nodes.address import Address, from_options, from_url
from django_redlock.nodes.admission import skew_of
from django_redlock.nodes.background import call_in_child, notice_fork
from django_redlock.nodes.group import NodeGroup

from .backend import Backend, Group, backends, in_tests
from .core.names import check_alias, did_you_mean
from .core.policy import Policy, check_seconds
from .extras import needs
from .locks.advice import unknown_setting
from .transactions import in_transaction, under_lock

DEFAULTS: Final[dict[str, Any]] = {
    "NODES": (),
    "TTL": 30,
    "MAX_TTL": 60,
    "WAIT": 0,
    "MAX_WAITING_REQUESTS": 100,
    "RENEW": True,
    "MAX_HOLD": None,
    "NODE_TIMEOUT": 0.05,
    "CLOCK_DRIFT": 0.01,
    "CLOCK_SKEW": 10,
    "KEY_PREFIX": "redlock:",
    "RESTART_GUARD": True,
    "FAILOVER": False,
    "OPTIONS": {},
}
# Seconds. Some things wait for several node timeouts, and ``poll`` for no more than 24 days.
LONGEST_TIMEOUT: Final = 86_400
# The keys that are seconds, and what ``check_seconds`` allows besides a number above 0.
SECONDS: Final[dict[str, dict[str, Any]]] = {
    "TTL": {},
    "MAX_TTL": {},
    "WAIT": {"zero": True, "endless": True},
    "MAX_HOLD": {"endless": True},
    "NODE_TIMEOUT": {"most": LONGEST_TIMEOUT},
    "CLOCK_SKEW": {"zero": True},
}
NODE_KEYS: Final = frozenset({"URL", "USERNAME", "PASSWORD", "CACHE"})
MEMORY: Final = "memory://"
EXAMPLE: Final = "{'default': {'NODES': ['redis://10.0.0.1:6379/0', …]}}"
UPTIME_STEP: Final = 1.0  # seconds: nodes report their uptime in whole ones
OF_ONE_NODE: Final = frozenset({"host", "port", "path"})  # options of a node, not of all
LONGEST_PREFIX: Final = 512  # bytes
NO_NODE: Final = "the cache {!r} {}: name one independent master, by its own URL"

_making = threading.RLock()


def backend(alias: str) -> Backend:
    """Return the backend of an alias, made at its first use and kept until settings change.

    Raises:
        ImproperlyConfigured: the setting is missing or wrong; the text says where.
        TypeError: the alias is not a text.
    """
    check_alias(alias)
    notice_fork()
    with _making:
        found = backends.get(alias)
        if found is None:  # a handler's lock may make one meanwhile: then it is that one
            found = backends.setdefault(alias, make(alias, _setting(alias)))
        return found


def forget() -> None:
    """Forget all backends; each is made anew at its next use. Leases keep their backend."""
    notice_fork()
    with _making:
        old = list(backends.values())
        backends.clear()
    for each in old:
        each.group.close(0)


def _changed(*, setting: str, **_: object) -> None:
    if setting in {"REDLOCK", "CACHES"}:
        forget()


def _after_fork() -> None:
    global _making  # noqa: PLW0603 - the state of this module
    _making = threading.RLock()


call_in_child(_after_fork)
setting_changed.connect(_changed, dispatch_uid="django_redlock.conf")


# -- what the settings say ------------------------------------------------------------------------


def aliases() -> Iterator[str]:
    """Return an iterator over the configured aliases.

    Raises:
        ImproperlyConfigured: ``REDLOCK`` is missing or no dictionary, or has settings in the place
            of aliases, or an alias that is no text.
    """
    configured = _all()
    for alias in configured:
        try:
            check_alias(alias)
        except TypeError as error:
            raise ImproperlyConfigured(f"{error}: {alias!r}") from None
    misplaced = [key for key in configured if _is_misplaced(configured, key)]
    if misplaced:
        raise _outside(misplaced)
    return iter(configured)


def _all() -> Mapping[str, Any]:
    configured = getattr(settings, "REDLOCK", None)
    if not isinstance(configured, dict):
        raise ImproperlyConfigured(f"set REDLOCK to a dictionary: {EXAMPLE}")
    return configured


def _setting(alias: str) -> Mapping[str, Any]:
    configured = _all()
    if alias not in configured or _is_misplaced(configured, alias):
        misplaced = [key for key in configured if _is_misplaced(configured, key)]
        if misplaced:
            raise _outside(misplaced)
        raise ImproperlyConfigured(no_alias(alias, configured))
    if not isinstance(configured[alias], dict):
        raise ImproperlyConfigured(
            f"REDLOCK[{alias!r}] must be a dictionary: {{'NODES': ['redis://…', …]}}"
        )
    return configured[alias]  # type: ignore[no-any-return]


def no_alias(alias: str, known: Iterable[str]) -> str:
    """Return the text of the error: there is no such alias."""
    has = ", ".join(map(repr, known))
    if not has:
        return f"REDLOCK is empty: set it to {EXAMPLE}"
    return f"REDLOCK has no alias {alias!r}{did_you_mean(alias, known)}; it has: {has}"


def _is_misplaced(configured: Mapping[str, Any], key: object) -> bool:
    """Return True for a setting that is in the place of an alias; an alias may have its name."""
    return not isinstance(configured[key], dict) and str(key).upper() in DEFAULTS  # type: ignore[index]


def _outside(keys: Sequence[object]) -> ImproperlyConfigured:
    moved = ", ".join(f"'{str(key).upper()}': …" for key in keys)
    return ImproperlyConfigured(
        f"REDLOCK has settings where aliases belong, {', '.join(map(repr, keys))}: put them into "
        f"an alias, as in REDLOCK = {{'default': {{{moved}}}}}"
    )


def values_of(alias: str) -> dict[str, Any]:
    """Return the settings of an alias, defaults included, as they are written.

    Raises:
        ImproperlyConfigured: there is no such alias.
    """
    return DEFAULTS | dict(_setting(alias))


def addresses_of(alias: str) -> list[Address]:
    """Return the addresses of an alias's nodes, in order; none for nodes in memory.

    The settings are those of a backend that was made, so they are valid.
    """
    values = values_of(alias)
    if any(map(_is_in_memory, values["NODES"])):
        return []
    return [_address(node, values["OPTIONS"]) for node in values["NODES"]]


def guard_of(values: Mapping[str, Any]) -> float:
    """Return the seconds of the restart guard; 0: there is none."""
    if not values["RESTART_GUARD"]:
        return 0.0
    return float(values["MAX_TTL"] + values["CLOCK_SKEW"] + UPTIME_STEP)


# -- a backend of an alias's settings -------------------------------------------------------------


def make(alias: str, setting: Mapping[str, Any]) -> Backend:
    """Make a backend of one alias's settings; open no connection.

    Raises:
        ImproperlyConfigured: a key is unknown or its value makes no sense.
    """
    try:
        values = _read(setting)
        group = _group(alias, values)
    except (TypeError, ValueError) as error:  # it begins with the key
        raise ImproperlyConfigured(f"REDLOCK[{alias!r}]{error}") from None
    policy = Policy(
        size=len(values["NODES"]),
        max_ttl=values["MAX_TTL"],
        drift=values["CLOCK_DRIFT"],
        slack=values["CLOCK_SKEW"] / 2,  # the other half is for clients among themselves
        prefix=values["KEY_PREFIX"],
    )
    try:
        return Backend(
            alias,
            group,
            policy,
            ttl=values["TTL"],
            wait=values["WAIT"],
            renew=values["RENEW"],
            max_hold=values["MAX_HOLD"],
            max_waiting_requests=values["MAX_WAITING_REQUESTS"],
            in_transaction=in_transaction,
            atomic=under_lock,
            refuse_event_loop=refuse_event_loop,
            strict=lambda: settings.DEBUG or in_tests(),
        )
    except ValueError as error:
        raise ImproperlyConfigured(f"REDLOCK[{alias!r}]['TTL']: {error}") from None


@async_unsafe(
    "You cannot take a lock by blocking calls from an async context - use 'async with', or "
    "aacquire, atry_acquire, aadopt."
)
def refuse_event_loop() -> None:
    """Raise SynchronousOnlyOperation if an event loop runs in this thread, as the ORM does."""


def _group(alias: str, values: Mapping[str, Any]) -> Group:
    nodes = values["NODES"]
    in_memory = list(map(_is_in_memory, nodes))
    if any(in_memory):
        if not all(in_memory):
            raise ValueError(
                "['NODES'] mixes memory:// with real nodes: write all or none as memory://"
            )
        _check_distinct(nodes)
        from django_redlock.nodes.memory import MemoryNodes

        return MemoryNodes.named(nodes)
    found = []
    for position, node in enumerate(nodes):
        try:
            found.append(_address(node, values["OPTIONS"]))
        except (TypeError, ValueError, ImproperlyConfigured) as error:
            raise ValueError(f"['NODES'][{position}]: {error}") from None
    _check_distinct([address.identity for address in found])
    return NodeGroup(
        found,
        timeout=values["NODE_TIMEOUT"],
        guard=guard_of(values),
        skew=skew_of(values["CLOCK_SKEW"]),
        failover=values["FAILOVER"],
        prefix=values["KEY_PREFIX"],
        alias=alias,
    )


def _is_in_memory(node: object) -> bool:
    return isinstance(node, str) and node.startswith(MEMORY)


def _address(node: object, options: Mapping[str, Any]) -> Address:
    if isinstance(node, str):
        return from_url(node, options=options)
    if not isinstance(node, dict):
        raise TypeError(f"a node is a URL or a dictionary, not {type(node).__name__}")
    unknown = set(node) - NODE_KEYS
    if unknown:
        raise _unknown_of_node(sorted(map(str, unknown)))
    if "CACHE" in node:
        if len(node) > 1:
            raise ValueError("CACHE names a cache alias and goes with no other key")
        if not isinstance(node["CACHE"], str):
            raise TypeError(f"CACHE must be a cache alias, not {type(node['CACHE']).__name__}")
        return _address_of_cache(node["CACHE"], options)
    if not isinstance(node.get("URL"), str):
        raise TypeError("the dictionary needs a URL or a CACHE")
    for key in ("USERNAME", "PASSWORD"):
        if not isinstance(node.get(key), str | None):
            raise TypeError(f"{key} must be text, not {type(node[key]).__name__}")
    return from_url(
        node["URL"],
        username=node.get("USERNAME"),
        password=node.get("PASSWORD"),
        options=options,
    )


def _unknown_of_node(keys: Sequence[str]) -> ValueError:
    meant = did_you_mean(keys[0], NODE_KEYS)
    if OF_ONE_NODE & set(map(str.lower, keys)):
        meant = ": write {'URL': 'redis://10.0.0.1:6379/0'}"
    known = ", ".join(sorted(NODE_KEYS))
    return ValueError(f"unknown keys {list(keys)}{meant}; known are: {known}")


def _address_of_cache(alias: str, options: Mapping[str, Any]) -> Address:
    """Return the address of the server of the django-redis cache with this alias.

    Raises:
        TypeError, ValueError: there is none, or it is not one server that stays the same.
        ImproperlyConfigured: django-redis does not make the cache; its own text.
    """
    try:
        with needs("CACHE", "django_redis", "django-redlock[django-redis]"):
            from django_redis import get_redis_connection
    except ModuleNotFoundError as error:
        raise ValueError(str(error)) from None
    try:
        cache = caches[alias]
    except InvalidCacheBackendError:
        raise ValueError(f"CACHES has no alias {alias!r}") from None
    factory = getattr(getattr(cache, "client", None), "connection_factory", None)
    if factory is None:
        raise ValueError(
            f"the cache {alias!r} is not one of django-redis: its BACKEND in CACHES must be "
            "django_redis.cache.RedisCache"
        )
    if issubclass(getattr(factory, "redis_client_cls", object), RedisCluster):
        raise TypeError(NO_NODE.format(alias, "is a Redis Cluster, whose servers get no vote"))
    try:
        pool = get_redis_connection(alias).connection_pool
    except (AttributeError, NotImplementedError):
        raise ValueError(NO_NODE.format(alias, "spreads its keys over several servers")) from None
    except AssertionError as error:  # django-redis 5.4 says so that it cannot read an option
        raise ImproperlyConfigured(str(error)) from None
    if issubclass(pool.connection_class, SentinelManagedConnection):
        raise TypeError(NO_NODE.format(alias, "is found by Sentinel, which replaces its server"))
    kept = {
        key: value
        for key, value in pool.connection_kwargs.items()
        if key in {"host", "port", "path", "db", "username", "password"} or key.startswith("ssl_")
    }
    return from_options(pool.connection_class, {**kept, **options})


# -- which values make sense ----------------------------------------------------------------------


def _read(setting: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an alias, defaults included.

    Raises:
        TypeError, ValueError: a key is unknown, or a value makes no sense; the text begins with
            the key, as it follows the alias, and quotes no URL.
    """
    unknown = [key for key in setting if key not in DEFAULTS]
    if unknown:
        if str(unknown[0]).upper() in NODE_KEYS:
            raise ValueError(
                f" has {unknown[0]!r}, which belongs into each node's entry in NODES, as in "
                "{'NODES': [{'URL': 'redis://10.0.0.1:6379/0', 'PASSWORD': …}, …]}; one password "
                "for all nodes may be in {'OPTIONS': {'password': …}}"
            )
        meant = unknown_setting(unknown[0], DEFAULTS)
        known = ", ".join(DEFAULTS)
        raise ValueError(f" has unknown keys {unknown}{meant}; known are: {known}")
    values = DEFAULTS | dict(setting)
    _check_numbers(values)
    for key in ("RENEW", "RESTART_GUARD", "FAILOVER"):
        if not isinstance(values[key], bool):
            raise TypeError(f"[{key!r}] must be True or False")
    prefix = values["KEY_PREFIX"]
    if not (
        isinstance(prefix, str) and prefix.isprintable() and len(prefix.encode()) <= LONGEST_PREFIX
    ):
        raise ValueError(
            f"['KEY_PREFIX'] must be text of at most {LONGEST_PREFIX} bytes without control "
            "characters"
        )
    if not isinstance(values["OPTIONS"], dict):
        raise TypeError("['OPTIONS'] must be a dictionary of redis-py connection arguments")
    for key in OF_ONE_NODE & set(values["OPTIONS"]):
        raise ValueError(
            f"['OPTIONS'] is for all nodes: write {key!r} into each node's URL in NODES"
        )
    _check_nodes(values["NODES"])
    return values


def _check_numbers(values: Mapping[str, Any]) -> None:
    for key, allowed in SECONDS.items():
        if values[key] is DEFAULTS[key] is None:
            continue
        try:
            check_seconds(key, values[key], **allowed)
        except (TypeError, ValueError) as error:
            raise ValueError(f": {error}") from None
    most = values["MAX_WAITING_REQUESTS"]
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise ValueError(
            "['MAX_WAITING_REQUESTS'] is a number of requests: 1 or more, or None for any number; "
            "write wait=0 for views that shall not wait"
        )
    drift = values["CLOCK_DRIFT"]
    if isinstance(drift, bool) or not isinstance(drift, int | float) or not 0 <= drift < 1:
        raise ValueError(
            "['CLOCK_DRIFT'] is a part of the ttl: a number from 0 to below 1, e.g. 0.01"
        )


def _check_nodes(nodes: object) -> None:
    if isinstance(nodes, list | tuple) and nodes:
        return
    example = "['redis://10.0.0.1:6379/0']"
    if isinstance(nodes, list | tuple):
        wrong = f"is empty: it must be a list of nodes, as in {example}"
    elif isinstance(nodes, str):  # not quoted: it may have a password in it
        wrong = f"must be a list, not one text: put each URL into a list, as in {example}"
    elif isinstance(nodes, dict):
        wrong = "must be a list, not a dictionary: put it into a list, as in [{'URL': …}]"
    else:
        wrong = f"must be a list of nodes, as in {example}, not {type(nodes).__name__}"
    raise ValueError(f"['NODES'] {wrong}")


def _check_distinct(identities: Sequence[str]) -> None:
    for position, identity in enumerate(identities):
        first = identities.index(identity)
        if first != position:
            raise ValueError(
                f"['NODES'][{position}] is the same server as NODES[{first}]; a majority needs "
                "independent ones (another database number does not make one)"
            )
