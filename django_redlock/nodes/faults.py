"""Why a node cannot be used, or a connection to it was closed; reasons without secrets.

The constants are made here, once: nothing may be called on the way to closing a connection.
"""

from __future__ import annotations

import re
from typing import Final

from redis import exceptions

from django_redlock.core.reasons import Reason, ReasonCode, because

CLOSED: Final = because(ReasonCode.CLOSED)
ENDED_BY_NODE: Final = because(ReasonCode.CONNECTION_CLOSED)
GUARD_OVER: Final = because(ReasonCode.GUARD_OVER)
INTERRUPTED: Final = because(ReasonCode.INTERRUPTED)
LEFT_QUEUE: Final = because(ReasonCode.LEFT_QUEUE)
SURPLUS: Final = because(ReasonCode.SURPLUS)
TAKES_NO_MORE: Final = because(ReasonCode.TAKES_NO_MORE)


def no_answer(seconds: float) -> Reason:
    """Return the reason of a node that has owed a reply for so many seconds."""
    return because(ReasonCode.NO_ANSWER, seconds=seconds)


def lost(error: OSError) -> Reason:
    """Return the reason of a connection that the operating system has ended."""
    return because(ReasonCode.CONNECTION_LOST, text=str(error.strerror or error))


class Refused(Exception):  # noqa: N818 - internal: why a connection is of no use
    """The node replied, but may not vote or cannot be used.

    Attributes:
        reason: why.
    """

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


# By the code at the start of an error reply.
ERRORS: Final = {
    "WRONGTYPE": ReasonCode.WRONG_TYPE,
    "OOM": ReasonCode.OUT_OF_MEMORY,
    "LOADING": ReasonCode.LOADING,
    "BUSY": ReasonCode.BUSY,
    "READONLY": ReasonCode.READ_ONLY,
    "MISCONF": ReasonCode.CANNOT_SAVE,
    "NOREPLICAS": ReasonCode.TOO_FEW_REPLICAS,
    "NOPERM": ReasonCode.NO_PERMISSION,
    "NOAUTH": ReasonCode.PASSWORD_NEEDED,
    "WRONGPASS": ReasonCode.LOGIN_REFUSED,
}
# By these a server says that it is not the one that is wanted: it became a replica, or a node of a
# cluster. The address may lead to another one by now.
TURNING_AWAY: Final = frozenset({"READONLY", "MOVED", "CLUSTERDOWN", "MASTERDOWN"})
# By a part of what redis-py and the system say.
TOLD: Final = {
    "Connection refused": ReasonCode.CONNECTION_REFUSED,
    "connection closed by the node": ReasonCode.CONNECTION_CLOSED,
    "No such file or directory": ReasonCode.NO_SUCH_SOCKET,
    "Name or service not known": ReasonCode.NO_SUCH_HOST,
    "No route to host": ReasonCode.NO_ROUTE,
    "max number of clients reached": ReasonCode.TOO_MANY_CLIENTS,
    "DB index is out of range": ReasonCode.NO_SUCH_DATABASE,
    "unknown command 'SELECT'": ReasonCode.PERHAPS_SENTINEL,
    "unknown command `SELECT`": ReasonCode.PERHAPS_SENTINEL,  # Redis 6
    "Authentication required": ReasonCode.PASSWORD_NEEDED,
    "invalid username-password pair": ReasonCode.LOGIN_REFUSED,
    "without any password configured": ReasonCode.NO_PASSWORD_THERE,
}
LONGEST: Final = 200  # characters that are kept of another program's text
# By the first byte that is none of a reply, as hiredis tells it.
NO_REPLY: Final = re.compile('Protocol error, got "(.+)" as reply type byte', re.DOTALL)
FIRST: Final = {"\\x15": ReasonCode.TLS, "H": ReasonCode.WEB_SERVER, "<": ReasonCode.WEB_SERVER}

# By a part of what OpenSSL says of a certificate; of any other, nobody has vouched for it.
CERTIFICATES: Final = {
    "mismatch": ReasonCode.OTHER_HOST,
    "expired": ReasonCode.EXPIRED,
    "not yet valid": ReasonCode.EXPIRED,
}
NOT_VERIFIED: Final = re.compile(r"certificate verify failed: (.+?)\.? \(_ssl\.")
NOT_IN_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
ENDED_IN_TLS: Final = ("UNEXPECTED_EOF_WHILE_READING", "EOF occurred in violation of protocol")
ENDED: Final = ("Connection reset by peer", "Connection closed by server", "Broken pipe")

# Before 7.0, Redis puts this before the error that a command in a script got, and gives the refusal
# of an ACL no code. redis-py takes the ERR away.
IN_A_SCRIPT: Final = re.compile(r"^(?:ERR )?Error running script .*?(?:@user_script: ?\d+: )+-?")
DENIED_IN_A_SCRIPT: Final = "The user executing the script can't"


def complaint(error: Exception) -> Reason:
    """Return the reason in a node's error reply."""
    text = _text_of(error)
    known = ERRORS.get(text.split(" ", 1)[0])
    return because(known) if known else because(ReasonCode.ERROR, text=text[:LONGEST])


def turns_away(error: Exception) -> bool:
    """Return whether a node's error reply says that the connection leads to a wrong server."""
    return _text_of(error).split(" ", 1)[0] in TURNING_AWAY


def why_unreached(error: Exception, *, tls: bool = False) -> Reason:
    """Return why a node could not be reached, without addresses that may have secrets.

    Args:
        error: what was raised while connecting.
        tls: whether the node's URL says that it speaks TLS.
    """
    if isinstance(error, UnicodeDecodeError):  # redis-py reads an error reply strictly
        return because(ReasonCode.UNREADABLE_ERROR)
    if isinstance(error, UnicodeError):  # it quotes a character, which may be a password's
        return because(ReasonCode.UNSENDABLE)
    if isinstance(error, Refused):
        return error.reason
    if isinstance(error, exceptions.InvalidResponse):
        return not_redis(error)
    if isinstance(error, ValueError):
        return because(ReasonCode.CONNECT_FAILED, text=str(error))
    behind = _behind_the_port(error, tls=tls)
    return because(behind) if behind else _of_certificates(error) or _as_told(error)


def _as_told(error: Exception) -> Reason:
    text = _text_of(error)
    if not text and isinstance(error, exceptions.ResponseError):
        return because(ReasonCode.ERROR, text="")
    known = ERRORS.get(text.split(" ", 1)[0])
    if known:
        return because(known)
    if isinstance(error, exceptions.TimeoutError | TimeoutError):
        return because(ReasonCode.CONNECT_TIMEOUT)
    for sign, code in TOLD.items():
        if sign in text:
            return because(code)
    kind = type(error).__name__
    if isinstance(error, exceptions.RedisError | OSError):
        return because(ReasonCode.CONNECT_FAILED, text=text[:LONGEST] or kind)
    return because(ReasonCode.CONNECT_RAISED, text=kind)


def not_redis(error: Exception) -> Reason:
    """Return what is there instead of a node, by what hiredis says of its bytes."""
    found = NO_REPLY.match(str(error))
    if found is None:
        return because(ReasonCode.NOT_THE_PROTOCOL)
    return because(FIRST.get(found[1], ReasonCode.NOT_A_NODE))


def _behind_the_port(error: Exception, *, tls: bool) -> ReasonCode | None:
    """Return how the server differs from the URL as to TLS, if that can be seen."""
    text = f"{error} {error.__context__ or ''}"
    if not tls:
        return ReasonCode.PERHAPS_TLS if any(sign in text for sign in ENDED) else None
    if any(sign in text for sign in NOT_IN_TLS):
        return ReasonCode.NOT_TLS
    late = isinstance(error, exceptions.TimeoutError) and "handshake" in text
    ended = any(sign in text for sign in ENDED_IN_TLS)
    return ReasonCode.PERHAPS_NOT_TLS if late or ended else None


def _of_certificates(error: Exception) -> Reason | None:
    """Return which certificate is refused, the node's or ours."""
    text = str(error)
    if "CERTIFICATE_REQUIRED" in text:
        return because(ReasonCode.CERTIFICATE_NEEDED)
    refused = NOT_VERIFIED.search(text)
    if refused is None:
        return None
    said = refused[1][:LONGEST]
    code = next((code for sign, code in CERTIFICATES.items() if sign in said), ReasonCode.UNTRUSTED)
    return because(code, text=said)


def _text_of(error: Exception) -> str:
    """Return the error's text with its code at the start, as Redis 7.0 and later put it."""
    text = IN_A_SCRIPT.sub("", str(error))
    return f"NOPERM {text}" if text.startswith(DENIED_IN_A_SCRIPT) else text
