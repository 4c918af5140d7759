"""Check what others can read on the way to a node. No name is looked up."""

from __future__ import annotations

import ipaddress
import posixpath
import ssl
from typing import TYPE_CHECKING, Final, TypeAlias

from django.core import checks

from .ids import W017, W018

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django_redlock.transport.address import Address

IP: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
SHARED: Final = ipaddress.ip_network("100.64.0.0/10")  # of carriers and of private overlays
# Names that are given out inside one network only.
INSIDE: Final = (
    *(".localhost", ".local", ".internal", ".intranet", ".private", ".corp"),
    *(".lan", ".home", ".home.arpa", ".svc", ".consul"),
)
THIS_MACHINE: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def check_network(alias: str, addresses: Sequence[Address]) -> Iterator[checks.CheckMessage]:
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


def server_of(address: Address) -> str:
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
