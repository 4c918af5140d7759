"""Ask a node what a handshake does not: its settings, its clock, the rights of its user.

Nothing is written to the node but an entry of a wait queue that nobody uses, deleted at once.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Final, NamedTuple

from hiredis import ReplyError

from django_redlock.core.policy import boottime, microseconds
from django_redlock.core.reasons import ReasonCode

from . import admission
from .handshake import Admission, log_in, send
from .wire import rights
from .wire.refusals import Refused, complaint, why_unreached
from .wire.replies import ANOTHER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redis.connection import Connection as RedisConnection
    from redis.connection import UnixDomainSocketConnection

    from django_redlock.core.reasons import Reason

    from .address import Address
    from .wire.bounded import BoundedSocket

ROUND_TRIPS: Final = 5  # of which the quickest counts: this process may be busy
SECTIONS: Final = ("server", "replication", "memory", "stats", "persistence")  # of INFO
CONFIG: Final = ("save", "appendfsync")
VERSION: Final = re.compile(r"(\d{1,5})\.(\d{1,5})")


class Told(NamedTuple):
    """What a node told of itself, as far as it did.

    Attributes:
        refusal: why it cannot be used; None if it can, as far as that is known.
        facts: by its INFO and its clock; None if it did not tell.
        round_trip: seconds of a small command; None if none was answered.
        ahead: seconds that its clock is ahead of this machine's (negative: behind), or None.
        guard_left: seconds until the restart guard lets it vote; infinite: nobody has begun to
            count them; None: it could not be asked, or there is no guard.
        info: the rows of its INFO, by name.
        config: what it told of its configuration; empty where the user may not ask.
        denied: commands that the user may not run.
        keys_denied: whether the user may not use keys under the prefix.
        complaints: what else was wrong with the commands.
    """

    refusal: Reason | None = None
    facts: admission.ServerInfo | None = None
    round_trip: float | None = None
    ahead: float | None = None
    guard_left: float | None = None
    info: Mapping[str, str] = {}
    config: Mapping[str, str] = {}
    denied: tuple[str, ...] = ()
    keys_denied: bool = False
    complaints: tuple[Reason, ...] = ()

    @property
    def version(self) -> tuple[int, int] | None:
        """Return the version of Redis whose commands it has, without the last number."""
        found = VERSION.match(self.info.get("redis_version", ""))
        return (int(found[1]), int(found[2])) if found else None


def examine(
    address: Address, *, prefix: str, skew: float, timeout: float, guard: float = 0.0
) -> Told:
    """Ask a node all that can be asked; whatever is wrong is told, and nothing raised.

    Args:
        prefix: of every key.
        skew: seconds by which its clock may differ from ours.
        timeout: seconds for each step; for all replies together a few times that.
        guard: seconds of the restart guard; 0: there is none.
    """
    connection = None
    try:
        connection = address.connection(timeout)
        heard = log_in(connection, timeout)
        talk = _Talk(connection, heard)
        return talk.told(prefix, skew, guard, int(address.options.get("db") or 0))
    except Exception as error:  # noqa: BLE001 - a provider of credentials may raise anything
        return Told(refusal=why_unreached(error, tls=address.tls))
    finally:
        if connection is not None:
            connection.disconnect()


class _Talk:
    """Questions to one node."""

    def __init__(
        self, connection: RedisConnection | UnixDomainSocketConnection, heard: BoundedSocket
    ) -> None:
        self._connection, self._heard = connection, heard

    def told(self, prefix: str, skew: float, guard: float, db: int) -> Told:
        sections = self._ask(bytes, *(("INFO", each) for each in SECTIONS))
        info = b"\n".join(each for each in sections if isinstance(each, bytes))
        facts = admission.parse(info) if info else None  # first: it tells a Sentinel
        looks = self._looks()
        told = Told(config=self._config())
        if looks:
            best = min(looks, key=_took)
            ahead = best.clock - (best.sent + best.came) / 2
            told = told._replace(round_trip=_took(best), ahead=ahead)
        if facts is not None:
            if looks:
                facts = admission.seen(facts, best, None, skew)
            told = told._replace(facts=facts, info=_rows(info))
            if guard and not (facts.off or admission.objection(facts)):
                told = told._replace(guard_left=self._guard_left(facts, prefix, guard))
        found = self._rights(prefix, db)
        return told._replace(
            denied=tuple(found.denied),
            keys_denied=found.keys_denied,
            complaints=tuple(found.complaints),
        )

    def _guard_left(self, facts: admission.ServerInfo, prefix: str, guard: float) -> float | None:
        """Ask as a connection for locks does, but leave no mark."""
        age = admission.age(facts, boottime())
        question = Admission(f"{prefix}fences", guard, age, epoch="")
        (answer,) = self._ask(None, question.command)
        if isinstance(answer, ReplyError):  # for which trying the rights finds the words
            return None
        return question.read(answer)[0]

    def _config(self) -> dict[str, str]:
        """Ask for its configuration, which the user of the documentation may not."""
        said = self._ask(None, *(("CONFIG", "GET", each) for each in CONFIG))
        return dict(filter(None, map(_pair, said)))

    def _looks(self) -> list[admission.Look]:
        """Ask for its time, again and again; none: the user may not ask."""
        looks = []
        for _ in range(ROUND_TRIPS):
            sent, asked = microseconds(), boottime()
            (said,) = self._ask(list, ("TIME",))
            if isinstance(said, ReplyError):
                break
            clock = admission.clock_of(said)
            looks.append(admission.Look(clock, sent / 1e6, microseconds() / 1e6, asked, boottime()))
        return looks

    def _rights(self, prefix: str, db: int) -> rights.Rights:
        """Try the commands that the scripts and connections need."""
        name = f"redlock_check-{secrets.token_hex(8)}"

        def filled(command: tuple[str, ...]) -> tuple[str, ...]:
            return rights.filled(command, prefix=prefix, name=name, db=db)

        found = rights.Rights()
        tried = list(rights.harmless())
        replies = self._ask(None, *(filled(rights.TRIES[each]) for each in tried))
        for each, reply in zip(tried, replies, strict=True):
            if isinstance(reply, ReplyError):
                found.note(each, reply)
        if "del" not in found.denied and not found.keys_denied:
            write = filled(rights.TRIES[rights.WRITES])
            reply, _ = self._ask(None, write, filled(rights.UNDO))
            if isinstance(reply, ReplyError):
                found.note(rights.WRITES, reply)
        return found

    def _ask(self, kind: type | None, *commands: tuple[str | int, ...]) -> list[object]:
        """Send commands at once; return their replies, among them refusals of single commands.

        Args:
            kind: type of the first reply, if the user has the right; None: any.

        Raises:
            Refused: the first reply is of another type, or an error of the node itself.
            OSError: the connection is lost, or nothing comes.
        """
        send(self._connection, *commands)
        replies = [self._heard.answer() for _ in commands]
        if kind is None or isinstance(replies[0], kind):
            return replies
        if not isinstance(replies[0], ReplyError):
            raise Refused(ANOTHER)
        reason = complaint(replies[0])
        if reason.code is not ReasonCode.NO_PERMISSION:
            raise Refused(reason)
        return replies


def _took(look: admission.Look) -> float:
    return look.heard - look.asked


def _rows(info: bytes) -> dict[str, str]:
    rows = info.decode("utf-8", "replace").splitlines()
    return {name: value for name, _, value in (row.partition(":") for row in rows) if value}


def _pair(reply: object) -> tuple[str, str] | None:
    """Read the reply to CONFIG GET of one name."""
    if not isinstance(reply, list) or [type(each) for each in reply] != [bytes, bytes]:
        return None
    name, value = (each.decode("utf-8", "replace") for each in reply)
    return name, value
