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
from .protocol import boottime, microseconds, milliseconds

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
    skew: float,
    earlier: admission.Facts | None,
    timeout: float,
    progress: Callable[[], object] = bool,
) -> Channel:
    """Connect, and find out whether and from when the node may vote.

    Args:
        place: of the node in its group.
        fences: the key of the node's counters.
        guard: seconds a restarted or emptied node has no vote; 0: it has.
        skew: seconds by which its clock may differ from ours, with a guard.
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
        sent, asked = microseconds(), boottime()
        _send(connection, ("TIME",), ("INFO", "server"), ("INFO", "replication"))
        clock = admission.clock_of(_answer(connection))
        round_trip = time.monotonic() - start
        look = admission.Look(clock, sent / 1e6, microseconds() / 1e6, asked, boottime())
        facts = admission.parse(_answer(connection) + b"\n" + _answer(connection))
        facts = admission.seen(facts, look, earlier, skew if guard else math.inf)
        progress()
        refusal = admission.objection(facts)
        if refusal:
            raise Refused(refusal)  # noqa: TRY301 - the connection must be closed below
        age = admission.age(facts, look.heard)
        nonce = secrets.token_hex(16)
        longest = math.ceil(guard * 1000)  # the one time to round up
        epoch = secrets.token_hex(8)
        admit = ("EVAL", scripts.ADMIT, 1, fences, nonce, longest, milliseconds(age), epoch)
        load = [("SCRIPT LOAD", text) for text in scripts.TEXT.values()]
        # One of the two clocks is wrong: nothing may be written by it.
        asking = [] if facts.off else [admit]
        _send(connection, *load, *asking, ("CLIENT ID",))
        for _ in load:
            _answer(connection)
        answer = _answer(connection) if asking else [nonce.encode(), b"ADMITTED", 0, b""]
        progress()
        if not isinstance(answer, list) or answer[:2] != [nonce.encode(), b"ADMITTED"]:
            raise Refused("answered another question")  # noqa: TRY301 - as above
        guard_left = max(admission.guard_left(age, guard), answer[2] / 1000)
        if facts.off:
            guard_left = admission.LOOK_AGAIN
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
