"""System checks of ``REDLOCK``: what is wrong or risky, and what to do. They contact no node.

What raises an error that says the same when it is first used has no check; but for E001, because
settings are the same everywhere, and the first lock may be that of a job at night.

``manage.py check`` calls ``check_settings``, and ``check --deploy`` calls ``check_deployment`` as
well. ``manage.py redlock_check`` asks the nodes; see ``inspection.probe``.

The ids stay, because projects silence checks by them. ``celery.checks`` has W006, W007, W009, W027
and W028, ``tasks.checks`` E002 and W030, ``fencing`` has W010 and W011, ``views.checks`` W032, and
``idempotency.checks`` W025, W026 and W029. W031 is for locks of tasks and views together: ``apps``
asks each module for its locks.
"""

from __future__ import annotations

import ipaddress
import math
import posixpath
import re
import ssl
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from django.conf import settings
from django.core import checks
from django.core.cache import DEFAULT_CACHE_ALIAS
from django.core.exceptions import ImproperlyConfigured
from redis.connection import Connection, parse_url

from django_redlock.nodes.address import SCHEMES, Address, from_options

from . import conf
from .core.policy import looks_like_milliseconds
from .core.reasons import CHECKS
from .leases.lease import RENEWALS
from .locks.lock import decorated

E001: Final = "django_redlock.E001"  # a setting that is wrong
W001: Final = "django_redlock.W001"  # a password in a URL
W002: Final = "django_redlock.W002"  # an even number of nodes
W004: Final = "django_redlock.W004"  # --deploy: nodes in memory
W005: Final = "django_redlock.W005"  # --deploy: several nodes without the restart guard
W012: Final = "django_redlock.W012"  # two nodes
W014: Final = "django_redlock.W014"  # a TTL too short for NODE_TIMEOUT
W015: Final = "django_redlock.W015"  # a MAX_HOLD below TTL
W016: Final = "django_redlock.W016"  # a cache in the database of a node
W017: Final = "django_redlock.W017"  # --deploy: no TLS to a host elsewhere
W018: Final = "django_redlock.W018"  # --deploy: TLS that verifies nothing
W019: Final = "django_redlock.W019"  # --deploy: a restart guard of more than an hour
W020: Final = "django_redlock.W020"  # a CLOCK_DRIFT below what clocks drift by
W023: Final = "django_redlock.W023"  # seconds that look like milliseconds
W024: Final = "django_redlock.W024"  # several nodes with failover
W031: Final = "django_redlock.W031"  # one name with a limit and without, or with two limits

Messages: TypeAlias = Iterator[checks.CheckMessage]


# -- what Django calls ----------------------------------------------------------------------------


@checks.register(checks.Tags.security)
def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """Report E001 for what ``conf`` refuses, and warnings for what works but is risky.

    Missing settings are no error: a command that takes no lock, such as ``collectstatic``, needs
    none.
    """
    return documented(_check_settings())


@checks.register(checks.Tags.security, deploy=True)
def check_deployment(**_: Any) -> list[checks.CheckMessage]:
    """Report what tests and development may do, and a deployment should not."""
    return documented(_check_deployment())


def known_locks() -> Iterator[KnownLock]:
    """Yield the locks of functions under ``@redlock``, for the check of limits."""
    for function, (alias, names, limit) in tuple(decorated.items()):
        module = getattr(function, "__module__", "")
        name = getattr(function, "__qualname__", type(function).__name__)
        yield from of_names(f"the function {module}.{name}", alias, names, limit)


def documented(found: Iterable[checks.CheckMessage]) -> list[checks.CheckMessage]:
    """Return the messages of this package, each with the address of its section in the hint."""
    messages = list(found)
    for each in messages:
        app, _, number = (each.id or "").partition(".")
        address = f"{CHECKS}{number.lower()}"
        if app == "django_redlock" and address not in (each.hint or ""):
            each.hint = f"{each.hint or ''} See {address}".lstrip()
    return messages


class KnownLock(NamedTuple):
    """A lock in the code of the project, as far as its decorator tells.

    Attributes:
        where: what has it, in the middle of a sentence.
        alias: the alias of its nodes.
        name: its name as it is written, each field as ``{}``.
        limit: how many may hold it at a time; None: it has no limit.
    """

    where: str
    alias: str
    name: str
    limit: int | None


def of_names(
    where: str, alias: str, names: Iterable[str], limit: int | None
) -> Iterator[KnownLock]:
    """Yield a lock for each of these names; of a mere field nobody knows the name."""
    for name in names:
        parts = list(string.Formatter().parse(name))
        if any(part[0] for part in parts):
            shown = "".join(part[0] + ("" if part[1] is None else "{}") for part in parts)
            yield KnownLock(where, alias, shown, limit)


def check_limits(locks: Iterable[KnownLock]) -> list[checks.CheckMessage]:
    """Report W031 of names that are locked with different limits."""
    return documented(_check_limits(locks))


def _check_limits(locks: Iterable[KnownLock]) -> Messages:
    names: dict[tuple[str, str], dict[int | None, KnownLock]] = {}
    for each in locks:  # of several with one limit, the first
        names.setdefault((each.alias, each.name), {}).setdefault(each.limit, each)
    for (_, name), limits in names.items():
        limited = [each for limit, each in limits.items() if limit is not None]
        if limited and None in limits:
            one, other = limited[0], limits[None]
            yield checks.Warning(
                f"The name {name!r} has limit={one.limit} in {one.where}, and none in "
                f"{other.where}: these are two locks, and do not keep each other out.",
                hint="Write the same limit in both, or different names.",
                id=W031,
            )
        if len(limited) > 1:
            shown = " and ".join(f"limit={each.limit} in {each.where}" for each in limited)
            most = max(limit for limit in limits if limit is not None)
            yield checks.Warning(
                f"The name {name!r} has {shown}: up to {most} hold it, and a caller with a smaller "
                "limit waits for the first slots alone.",
                hint="Write one limit.",
                id=W031,
            )


def _check_settings() -> Messages:
    if not hasattr(settings, "REDLOCK"):
        return
    for alias, error in _aliases():
        if error is not None:
            yield checks.Error(
                str(error),
                hint="Correct what it names; commands that take no lock stop, too.",
                id=E001,
            )
            continue
        values, addresses = conf.values_of(alias), conf.addresses_of(alias)
        yield from _check_nodes(alias, values["NODES"])
        if len(values["NODES"]) > 1 and values["FAILOVER"]:
            yield checks.Warning(
                f"REDLOCK[{alias!r}]['FAILOVER'] is True with {len(values['NODES'])} nodes: a "
                "promoted replica votes, also while some clients still reach the master that it "
                "replaces.",
                hint="Remove FAILOVER, and give each address one independent master: when one "
                "fails, the others vote on.",
                id=W024,
            )
        yield from _check_seconds(alias, values, in_memory=not addresses)
        yield from _check_caches(alias, values["NODES"], addresses)


def _check_deployment() -> Messages:
    for alias, error in _aliases():
        if error is not None:
            continue  # check_settings reports it
        values, addresses = conf.values_of(alias), conf.addresses_of(alias)
        if not addresses:
            yield checks.Warning(
                f"REDLOCK[{alias!r}]['NODES'] are memory:// nodes, of which every process has its "
                "own: two processes can hold the same lock.",
                hint="Name servers that all processes share: ['redis://10.0.0.1:6379/0', …].",
                id=W004,
            )
            continue
        if len(addresses) > 1 and not values["RESTART_GUARD"]:
            yield checks.Warning(
                f"REDLOCK[{alias!r}]['RESTART_GUARD'] is False: a node that restarts grants locks "
                "that others still hold.",
                hint="Remove RESTART_GUARD. With a single node, whose locks only save work, it may "
                "be False.",
                id=W005,
            )
        yield from _check_guard(alias, values)
        yield from _check_network(alias, addresses)


def _aliases() -> Iterator[tuple[str, ImproperlyConfigured | None]]:
    """Yield each alias, and what is wrong with its settings; "": with ``REDLOCK`` as a whole."""
    try:
        for alias in conf.aliases():
            try:
                conf.backend(alias)
            except ImproperlyConfigured as error:
                yield alias, error
            else:
                yield alias, None
    except ImproperlyConfigured as error:
        yield "", error


# -- the nodes: how many, and passwords in their URLs ---------------------------------------------


def _check_nodes(alias: str, nodes: Sequence[object]) -> Messages:
    """Yield W001, W002 and W012."""
    where, count, two = f"REDLOCK[{alias!r}]['NODES']", len(nodes), 2
    if any(_has_password(node) for node in nodes):
        yield checks.Warning(
            f"{where} has a password in a URL: Django's debug page shows it.",
            hint='Write {"URL": "redis://host:6379/0", "PASSWORD": …}: that is masked.',
            id=W001,
        )
    if count == two:
        yield checks.Warning(
            f"{where} has 2 nodes, and every lock needs both: when either is down, no lock can be "
            "taken. One node alone is down less often.",
            hint="Use 3 nodes, of which one may be down, or 1 node.",
            id=W012,
        )
    elif count % 2 == 0:
        yield checks.Warning(
            f"{where} has {count} nodes, which tolerate no more failures than {count - 1}.",
            hint="Use an odd number of nodes: 1, 3 or 5.",
            id=W002,
        )


def _has_password(node: object) -> bool:
    url = node.get("URL") if isinstance(node, dict) else node
    if not isinstance(url, str):
        return False
    return urlsplit(url).password is not None or "password=" in urlsplit(url).query


# -- seconds that do not fit together -------------------------------------------------------------

DRIFT: Final = 0.0002  # by which clocks drift that nobody corrects
LONGEST_GUARD: Final = 3600.0  # seconds
# Seconds from which a setting may be meant in milliseconds. No node takes 10 s for a reply.
SUSPICIOUS: Final = {
    "NODE_TIMEOUT": 10.0,
    "TTL": 1000.0,
    "MAX_TTL": 1000.0,
    "WAIT": 1000.0,
    "MAX_HOLD": 100_000.0,  # work of a night is no mistake
    "CLOCK_SKEW": 1000.0,
}


def _check_seconds(alias: str, values: Mapping[str, Any], *, in_memory: bool) -> Messages:
    """Yield W014, W015, W020 and W023; nodes in memory reply at once and have our clock."""
    where = f"REDLOCK[{alias!r}]"
    ttl, timeout, max_hold = values["TTL"], values["NODE_TIMEOUT"], values["MAX_HOLD"]
    suspicious = [key for key in SUSPICIOUS if _is_suspicious(key, values[key])]
    if suspicious:  # such a value is allowed, and hardly ever meant
        yield checks.Warning(
            f"{where} has numbers of seconds that look like milliseconds: "
            f"{', '.join(f'{key} is {values[key]:g} s' for key in suspicious)}.",
            hint="Write the seconds, if milliseconds were meant: "
            f"{', '.join(f'{key!r}: {values[key] / 1000:g}' for key in suspicious)}.",
            id=W023,
        )
    if not in_memory and ttl < RENEWALS * timeout:
        yield checks.Warning(
            f"{where}['TTL'] is {ttl:g} s and NODE_TIMEOUT is {timeout:g} s: a lease is renewed "
            f"every {ttl / RENEWALS:g} s, and is lost while one renewal waits for its nodes.",
            hint="Lower NODE_TIMEOUT."
            if "NODE_TIMEOUT" in suspicious
            else f"Raise TTL to {10 * timeout:g} or more, or lower NODE_TIMEOUT.",
            id=W014,
        )
    if max_hold is not None and max_hold < ttl:
        yield checks.Warning(
            f"{where}['MAX_HOLD'] is {max_hold:g} s and TTL is {ttl:g} s: a lease lasts for its "
            "ttl all the same, because MAX_HOLD only ends renewals.",
            hint=f"Lower TTL to {max_hold:g} or less, or raise MAX_HOLD above TTL.",
            id=W015,
        )
    if not in_memory and values["CLOCK_DRIFT"] < DRIFT:
        yield checks.Warning(
            f"{where}['CLOCK_DRIFT'] is {values['CLOCK_DRIFT']:g}, and clocks that are left alone "
            f"drift by up to {DRIFT:g}: a holder would rely on its lease after a node forgot it.",
            hint=f"Remove CLOCK_DRIFT: the default is {conf.DEFAULTS['CLOCK_DRIFT']:g}.",
            id=W020,
        )


def _is_suspicious(key: str, seconds: float | None) -> bool:
    if seconds is None or not SUSPICIOUS[key] <= seconds < math.inf:
        return False
    return key == "NODE_TIMEOUT" or looks_like_milliseconds(seconds)


def _check_guard(alias: str, values: Mapping[str, Any]) -> Messages:
    guard = conf.guard_of(values)
    if guard > LONGEST_GUARD:
        key = "MAX_TTL" if values["MAX_TTL"] >= values["CLOCK_SKEW"] else "CLOCK_SKEW"
        yield checks.Warning(
            f"REDLOCK[{alias!r}][{key!r}] is {values[key]:g} s: a node that restarts has "
            f"no vote for {guard:g} s, by the restart guard.",
            hint="Lower MAX_TTL to a minute or so: a lease is renewed for as long as its block "
            "runs, so no ttl needs to be as long as the work."
            if key == "MAX_TTL"
            else "Lower CLOCK_SKEW to what your clocks may be apart: 10 s is the default.",
            id=W019,
        )


# -- caches in the database of a node: ``cache.clear()`` deletes the locks there ------------------

Database: TypeAlias = tuple[str, int]  # a server, and the number of a database
LOCATION: Final = frozenset({"host", "port", "path", "db"})
VALKEY: Final = re.compile("^valkey(?=s?://)")


def _check_caches(alias: str, nodes: Sequence[object], addresses: Sequence[Address]) -> Messages:
    """Yield W016 for each cache in the database of a node.

    A cache that the setting names as a node is meant for locks, unless it is the default one.
    """
    databases = list(map(_database, addresses))
    for name, cache in getattr(settings, "CACHES", {}).items():
        for database in _databases(cache):
            if database not in databases:
                continue
            index = databases.index(database)
            if nodes[index] == {"CACHE": name} and name != DEFAULT_CACHE_ALIAS:
                continue
            yield checks.Warning(
                f"CACHES[{name!r}] is in the database of REDLOCK[{alias!r}]['NODES'][{index}] "
                f"({addresses[index].label}): its clear() deletes the locks that are held.",
                hint="Give the cache a server of its own, or at least another database number.",
                id=W016,
            )
            break


def _database(address: Address) -> Database:
    return _server(address), int(address.options.get("db") or 0)


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
            options_of_url = {key: value for key, value in found.items() if key in LOCATION}
            yield _database(from_options(kind, options_of_url))
        except ValueError:
            continue  # the cache itself tells of that


# -- what others can read on the way to a node. No name is looked up ------------------------------

IP: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
SHARED: Final = ipaddress.ip_network("100.64.0.0/10")  # of carriers and of private overlays
# Names that are given out inside one network only.
INSIDE: Final = (
    *(".localhost", ".local", ".internal", ".intranet", ".private", ".corp"),
    *(".lan", ".home", ".home.arpa", ".svc", ".consul"),
)
THIS_MACHINE: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def _check_network(alias: str, addresses: Sequence[Address]) -> Messages:
    """Yield W017 and W018."""
    where = f"REDLOCK[{alias!r}]['NODES']"
    open_to_all = [each.label for each in addresses if not each.tls and not _is_inside(each)]
    if open_to_all:
        yield checks.Warning(
            f"{where} has nodes without TLS that are neither on this machine nor in a private "
            f"network, as far as their names tell: {', '.join(open_to_all)}. Everybody on the way "
            "can read the password, and take locks.",
            hint="Begin their URLs with rediss://, or write the private addresses of these nodes.",
            id=W017,
        )
    unverified = [each.label for each in addresses if each.tls and not _verifies(each)]
    if unverified:
        yield checks.Warning(
            f"{where} has nodes whose certificate or host name is not verified: "
            f"{', '.join(unverified)}. Everybody on the way can pretend to be the node.",
            hint="Remove ssl_cert_reqs and ssl_check_hostname from OPTIONS and the URLs, and name "
            "the nodes' CA: 'OPTIONS': {'ssl_ca_certs': '/etc/ssl/nodes-ca.pem'}.",
            id=W018,
        )


def _server(address: Address) -> str:
    """Return the same text for addresses that are one server by different names."""
    if "path" in address.options:
        return f"unix:{posixpath.normpath(str(address.options['path']))}"
    host = _host(address)
    shown = "localhost" if host in THIS_MACHINE else host
    return f"{shown}:{address.options.get('port', 6379)}"


def _host(address: Address) -> str:
    host = str(address.options.get("host", "localhost")).lower().rstrip(".")
    ip = _ip(host)
    return host if ip is None else str(ip)


def _ip(host: str) -> IP | None:
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(ip, "ipv4_mapped", None) or ip


def _is_inside(address: Address) -> bool:
    """Tell whether this is a socket, this machine, or in a private network by its name."""
    if "path" in address.options:
        return True
    host = _host(address)
    ip = _ip(host)
    if ip is not None:
        return ip.is_private or ip.is_loopback or ip.is_link_local or ip in SHARED
    return "." not in host or host.endswith(INSIDE)


def _verifies(address: Address) -> bool:
    required = address.options.get("ssl_cert_reqs", "required")
    verified = required not in ("none", None, ssl.CERT_NONE)
    return verified and bool(address.options.get("ssl_check_hostname", True))
