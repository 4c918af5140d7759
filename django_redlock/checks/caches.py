"""Find caches in the database of a node: ``cache.clear()`` deletes the locks there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from django.conf import settings
from django.core import checks
from django.core.cache import DEFAULT_CACHE_ALIAS
from redis.connection import Connection, parse_url

from django_redlock.transport.address import SCHEMES, from_options

from .ids import W016
from .network import server_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from django_redlock.transport.address import Address

Database: TypeAlias = tuple[str, int]  # a server, and the number of a database
PLACE: Final = frozenset({"host", "port", "path", "db"})
VALKEY: Final = re.compile("^valkey(?=s?://)")


def shared_databases(
    alias: str, nodes: Sequence[object], addresses: Sequence[Address]
) -> Iterator[checks.CheckMessage]:
    """Yield W016 for each cache in the database of a node.

    A cache that the setting names as a node is meant for locks, unless it is the default one.

    Args:
        nodes: as the setting has them.
        addresses: of the same nodes; empty for nodes in memory.
    """
    databases = list(map(_database, addresses))
    for name, cache in getattr(settings, "CACHES", {}).items():
        for database in _databases(cache):
            if database not in databases:
                continue
            place = databases.index(database)
            if nodes[place] == {"CACHE": name} and name != DEFAULT_CACHE_ALIAS:
                continue
            yield checks.Warning(
                f"CACHES[{name!r}] is in the database of REDLOCK[{alias!r}]['NODES'][{place}] "
                f"({addresses[place].label}): its clear() deletes the locks that are held.",
                hint="Give the cache a server of its own, or at least another database number.",
                id=W016,
            )
            break


def _database(address: Address) -> Database:
    return server_of(address), int(address.options.get("db") or 0)


def _databases(cache: Mapping[str, Any]) -> Iterator[Database]:
    """Yield where a cache keeps its data, if that is a server of this kind; no error quotes it."""
    locations = cache.get("LOCATION") or ()
    if isinstance(locations, str):
        locations = re.split("[;,]", locations)
    options = cache.get("OPTIONS") or {}
    options = {**(options.get("CONNECTION_POOL_KWARGS") or {}), **options}
    for location in locations if isinstance(locations, list | tuple) else ():
        url = VALKEY.sub("redis", str(location).strip())
        if not url.startswith(SCHEMES):
            continue
        try:
            found: dict[str, Any] = {"db": options.get("db"), **parse_url(url)}
            kind = found.get("connection_class", Connection)
            place = {key: value for key, value in found.items() if key in PLACE}
            yield _database(from_options(kind, place))
        except ValueError:
            continue  # the cache itself tells of that
