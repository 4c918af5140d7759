"""Check the list of nodes: how many, which of them are one server, passwords in their URLs."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from django.core import checks

from .ids import W001, W002, W012, W013
from .network import server_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django_redlock.transport.address import Address


def check_nodes(
    alias: str, nodes: Sequence[object], addresses: Sequence[Address]
) -> Iterator[checks.CheckMessage]:
    """Yield W001, W002, W012 and W013.

    Args:
        nodes: as the setting has them.
        addresses: of the same nodes; empty for nodes in memory.
    """
    where = f"REDLOCK[{alias!r}]['NODES']"
    if any(_has_password(node) for node in nodes):
        yield checks.Warning(
            f"{where} has a password in a URL: Django's debug page shows it.",
            hint='Write {"URL": "redis://host:6379/0", "PASSWORD": …}: that is masked.',
            id=W001,
        )
    yield from _check_number(where, len(nodes))
    yield from _check_names(where, addresses)


def _check_number(where: str, count: int) -> Iterator[checks.CheckMessage]:
    two = 2
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


def _check_names(where: str, addresses: Sequence[Address]) -> Iterator[checks.CheckMessage]:
    """Yield W013; ``conf`` refuses what is the same text, and no name is looked up here."""
    servers = [server_of(address) for address in addresses]
    for position, server in enumerate(servers):
        first = servers.index(server)
        if first != position:
            yield checks.Warning(
                f"{where}[{position}] ({addresses[position].label}) is the same server as "
                f"NODES[{first}] ({addresses[first].label}), by another name: it has no vote.",
                hint="Name another server, or remove it: a majority needs independent nodes.",
                id=W013,
            )


def _has_password(node: object) -> bool:
    url = node.get("URL") if isinstance(node, dict) else node
    if not isinstance(url, str):
        return False
    return urlsplit(url).password is not None or "password=" in urlsplit(url).query
