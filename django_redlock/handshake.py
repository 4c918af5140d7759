"""Open a connection to a node and find out, once for its life, whether the node may vote."""

from __future__ import annotations

import math
import secrets
import time
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from . import admission, scripts
from .channel import Channel
from .complaints import Refused
from .protocol import milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.connection import Connection, UnixDomainSocketConnection

    from .addresses import Address


def open_channel(
    address: Address,
    *,
    place: int,
    fences: str,
    guard: float,
    earlier: admission.Facts | None,
    timeout: float,
    progress: Callable[[], object] = bool,
) -> Channel:
    """Connect, and find out whether and from when the node may vote.

    Args:
        place: of the node in its group.
        fences: the key of the node's counters.
        guard: seconds a restarted or emptied node has no vote.
        earlier: what the node said at an earlier connection.
        timeout: seconds for each step.
        progress: called after each answer of the node.

    Raises:
        Refused: the node is there, but it may not vote or refuses us.
        RedisError, OSError: there is no such node.
        ValueError: it is no Redis or Valkey server.
    """
    connection = address.connection(timeout)
    try:
        connection.connect()
        progress()
        start = time.monotonic()
        _send(connection, ("INFO", "server"), ("INFO", "replication"))
        info = _answer(connection)
        round_trip = time.monotonic() - start
        info += b"\n" + _answer(connection)
        progress()
        facts = admission.parse(info)
        refusal = admission.objection(facts)
        if refusal:
            raise Refused(refusal)  # noqa: TRY301 - the connection must be closed below
        age = admission.age(facts, earlier)
        nonce = secrets.token_hex(16)
        longest = math.ceil(guard * 1000)  # the one time to round up
        admit = ("EVAL", scripts.ADMIT, 1, fences, nonce, longest, milliseconds(age))
        load = [("SCRIPT LOAD", text) for text in scripts.TEXT.values()]
        _send(connection, *load, (*admit, secrets.token_hex(8)), ("CLIENT ID",))
        for _ in load:
            _answer(connection)
        answer = _answer(connection)
        progress()
        if not isinstance(answer, list) or answer[:2] != [nonce.encode(), b"ADMITTED"]:
            raise Refused("answered another question")  # noqa: TRY301 - as above
        guard_left = max(admission.guard_left(age, guard), answer[2] / 1000)
        return Channel(
            connection,
            address.label,
            facts,
            place=place,
            client=_number(connection),
            epoch=answer[3],
            round_trip=round_trip,
            guard_left=guard_left,
        )
    except BaseException:
        connection.disconnect()
        raise


def _number(connection: Connection | UnixDomainSocketConnection) -> int:
    """The node's number for this connection, by which it can be unblocked; 0 if forbidden."""
    try:
        return int(_answer(connection))
    except ResponseError:
        return 0


def _send(
    connection: Connection | UnixDomainSocketConnection, *commands: tuple[str | int, ...]
) -> None:
    """Send commands at once: their answers take one round trip."""
    connection.send_packed_command(connection.pack_commands(commands))


def _answer(connection: Connection | UnixDomainSocketConnection) -> Any:
    return connection.read_response(disable_decoding=True)
