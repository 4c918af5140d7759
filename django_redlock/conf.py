"""Make backends of the ``REDLOCK`` setting, by alias; the only module that reads settings.

    REDLOCK = {"default": {"NODES": ["redis://10.0.0.1:6379/0", …], "TTL": 30, …}, …}

Every mistake is an ``ImproperlyConfigured`` that names the alias and the key and quotes no URL.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.asyncio import async_unsafe

from django_redlock.core.policy import Policy

from .backend import Backend, Group
from .cache_nodes import address_of
from .concurrency.forking import call_in_child
from .core.names import check_alias, did_you_mean
from .fanout.group import NodeGroup
from .setting_values import check_distinct, check_values
from .transactions import in_transaction, under_lock
from .transport.address import Address, from_url
from .transport.admission import skew_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

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
    "OPTIONS": {},
}
NODE_KEYS: Final = frozenset({"URL", "USERNAME", "PASSWORD", "CACHE"})
MEMORY: Final = "memory://"
EXAMPLE: Final = "{'default': {'NODES': ['redis://10.0.0.1:6379/0', …]}}"
UPTIME_STEP: Final = 1.0  # seconds: nodes report their uptime in whole ones

_backends: dict[str, Backend] = {}
_making = threading.RLock()


def backend(alias: str) -> Backend:
    """Return the backend of an alias, made at its first use and kept until settings change.

    Raises:
        ImproperlyConfigured: the setting is missing or wrong; the text says where.
        TypeError: the alias is not a text.
    """
    try:
        return _backends[alias]
    except (KeyError, TypeError):  # TypeError: no text, which ``check_alias`` says
        check_alias(alias)
    with _making:
        found = _backends.get(alias)
        if found is None:
            # A signal handler that locks may have made one meanwhile: then that is the one.
            found = _backends.setdefault(alias, make(alias, _setting(alias)))
        return found


def aliases() -> Iterator[str]:
    """Return an iterator over the configured aliases.

    Raises:
        ImproperlyConfigured: ``REDLOCK`` is missing or no dictionary, or has settings in the place
            of aliases.
    """
    configured = _all()
    misplaced = [key for key in configured if _is_misplaced(configured, key)]
    if misplaced:
        raise _outside(misplaced)
    return iter(configured)


def _all() -> Mapping[str, Any]:
    configured = getattr(settings, "REDLOCK", None)
    if not isinstance(configured, dict):
        msg = f"set REDLOCK to a dictionary: {EXAMPLE}"
        raise ImproperlyConfigured(msg)
    return configured


def _setting(alias: str) -> Mapping[str, Any]:
    configured = _all()
    if alias not in configured or _is_misplaced(configured, alias):
        misplaced = [key for key in configured if _is_misplaced(configured, key)]
        if misplaced:
            raise _outside(misplaced)
        raise ImproperlyConfigured(no_alias(alias, configured))
    if not isinstance(configured[alias], dict):
        msg = f"REDLOCK[{alias!r}] must be a dictionary: {{'NODES': ['redis://…', …]}}"
        raise ImproperlyConfigured(msg)
    return configured[alias]  # type: ignore[no-any-return]


def no_alias(alias: str, known: Iterable[str]) -> str:
    """Return what is said of an alias that there is not."""
    has = ", ".join(map(repr, known))
    if not has:
        return f"REDLOCK is empty: set it to {EXAMPLE}"
    return f"REDLOCK has no alias {alias!r}{did_you_mean(alias, known)}; it has: {has}"


def _is_misplaced(configured: Mapping[str, Any], key: object) -> bool:
    """Tell whether this is a setting of an alias, outside of any; an alias may have its name."""
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

    ``backend`` has told before whether the settings are valid.
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


def make(alias: str, setting: Mapping[str, Any]) -> Backend:
    """Make a backend of one alias's settings; open no connection.

    Raises:
        ImproperlyConfigured: a key is unknown or its value makes no sense.
    """
    where = f"REDLOCK[{alias!r}]"
    unknown = [key for key in setting if key not in DEFAULTS]
    if unknown:
        meant = "".join(did_you_mean(key, DEFAULTS) for key in unknown[:1])
        msg = f"{where} has unknown keys {unknown}{meant}; known are: {', '.join(DEFAULTS)}"
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
    group = _group(alias, values)
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
        )
    except ValueError as error:
        msg = f"{where}['TTL']: {error}"
        raise ImproperlyConfigured(msg) from None


def _group(alias: str, values: Mapping[str, Any]) -> Group:
    where = f"REDLOCK[{alias!r}]"
    nodes = values["NODES"]
    in_memory = list(map(_is_in_memory, nodes))
    if any(in_memory):
        if not all(in_memory):
            msg = (
                f"{where}['NODES'] mixes memory:// with real nodes: write all or none as memory://"
            )
            raise ImproperlyConfigured(msg)
        check_distinct(where, nodes)
        from .fanout.memory.group import MemoryNodes

        return MemoryNodes.named(nodes)
    found = []
    for position, node in enumerate(nodes):
        try:
            found.append(_address(node, values["OPTIONS"]))
        except (ValueError, ImproperlyConfigured) as error:
            msg = f"{where}['NODES'][{position}]: {error}"
            raise ImproperlyConfigured(msg) from None
    check_distinct(where, [address.identity for address in found])
    return NodeGroup(
        found,
        timeout=values["NODE_TIMEOUT"],
        guard=guard_of(values),
        skew=skew_of(values["CLOCK_SKEW"]),
        prefix=values["KEY_PREFIX"],
        alias=alias,
    )


def _is_in_memory(node: object) -> bool:
    return isinstance(node, str) and node.startswith(MEMORY)


def _address(node: object, options: Mapping[str, Any]) -> Address:
    if isinstance(node, str):
        return from_url(node, options=options)
    if not isinstance(node, dict):
        msg = f"a node is a URL or a dictionary, not {type(node).__name__}"
        raise ValueError(msg)  # noqa: TRY004 - the caller adds where and raises its own
    unknown = set(node) - NODE_KEYS
    if unknown:
        found = sorted(map(str, unknown))
        meant = did_you_mean(found[0], NODE_KEYS)
        msg = f"unknown keys {found}{meant}; known are: {', '.join(sorted(NODE_KEYS))}"
        raise ValueError(msg)
    if "CACHE" in node:
        if len(node) > 1:
            msg = "CACHE names a cache alias and goes with no other key"
            raise ValueError(msg)
        if not isinstance(node["CACHE"], str):
            msg = f"CACHE must be a cache alias, not {type(node['CACHE']).__name__}"
            raise ValueError(msg)
        return address_of(node["CACHE"], options)
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


@async_unsafe(
    "You cannot take a lock by blocking calls from an async context - use 'async with', or "
    "aacquire, atry_acquire, aadopt."
)
def refuse_event_loop() -> None:
    """Raise SynchronousOnlyOperation if an event loop runs in this thread, as the ORM does."""


def forget() -> None:
    """Forget all backends; each is made anew at its next use. Leases keep their backend."""
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
