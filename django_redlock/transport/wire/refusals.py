"""What a node's refusal means, in words that say what to do and give nothing secret away."""

from __future__ import annotations

import re
from typing import Final

from redis import exceptions


class Refused(Exception):  # noqa: N818 - internal: why a connection is of no use
    """The node answered, but may not vote or cannot be used; the text says why."""


ADVICE: Final = {
    "WRONGTYPE": "WRONGTYPE: a key under KEY_PREFIX (the lock's own, fences or held) is somebody "
    "else's; delete or rename it",
    "OOM": "OOM: out of memory; raise its maxmemory",
    "LOADING": "LOADING: still loading its data",
    "BUSY": "BUSY: running somebody's endless script (SCRIPT KILL ends it)",
    "READONLY": "READONLY: is a replica",
    "MISCONF": "MISCONF: cannot save to disk and refuses writes",
    "NOREPLICAS": "NOREPLICAS: has too few replicas and refuses writes",
    "NOPERM": "NOPERM: the user lacks a right; see the ACL line in the documentation",
    "NOAUTH": "NOAUTH: asks for a password; set PASSWORD for it in NODES",
    "WRONGPASS": "WRONGPASS: refuses the USERNAME or PASSWORD that NODES has for it",
}


NO_TEXT: Final = "answered with an error that is no text"
# What redis-py and the system say, with numbers and addresses around it.
REASONS: Final = {
    "Connection refused": "connection refused",
    "No such file or directory": "no such socket",
    "Name or service not known": "no such host",
    "No route to host": "no route to host",
    "max number of clients reached": "has as many clients as it allows",
    "DB index is out of range": "has no database of that number; correct it in NODES",
    "invalid username-password pair": "refuses the username or password that NODES has for it; "
    "correct USERNAME and PASSWORD",
    "without any password configured": "has no password for that user; set one there, or remove "
    "PASSWORD from NODES",
}

# What is behind the port, when it is not what the URL says.
NO_TLS: Final = "does not speak TLS; begin its URL with redis://, or name its TLS port"
PERHAPS_NO_TLS: Final = "does not answer in TLS; if that port has none, begin its URL with redis://"
TLS: Final = "speaks TLS; begin its URL with rediss://, or name its port without TLS"
PERHAPS_TLS: Final = (
    "closed the connection before it answered; if that port expects TLS, begin its URL with "
    "rediss://"
)
WEB_SERVER: Final = "is a web server, not Redis or Valkey; correct host and port in NODES"
STRANGER: Final = "answers, but not as Redis or Valkey; correct host and port in NODES"

NOT_IN_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
ENDED_IN_TLS: Final = ("UNEXPECTED_EOF_WHILE_READING", "EOF occurred in violation of protocol")
ENDED: Final = ("Connection reset by peer", "Connection closed by server", "Broken pipe")

# Before 7.0, Redis puts this before the error that a command in a script got, and gives the refusal
# of an ACL no code. redis-py takes the ERR away.
IN_A_SCRIPT: Final = re.compile(r"^(?:ERR )?Error running script .*?(?:@user_script: ?\d+: )+-?")
DENIED_IN_A_SCRIPT: Final = "The user executing the script can't"


def complaint(error: Exception) -> str:
    """A node's error reply in our words: what to do about it, and nothing secret."""
    text = _told(error)
    code = text.split(" ", 1)[0]
    return ADVICE.get(code) or f"answered with an error: {_printable(text[:200]) or 'no text'}"


def describe(error: Exception, *, tls: bool = False) -> str:
    """Why a node could not be reached, without addresses that may carry secrets.

    Args:
        error: what was raised while connecting.
        tls: whether the node's URL says that it speaks TLS.
    """
    if isinstance(error, UnicodeDecodeError):  # redis-py reads an error reply strictly
        return NO_TEXT
    if isinstance(error, UnicodeError):  # it quotes a character, which may be a password's
        return "its host, USERNAME or PASSWORD has characters that cannot be sent"
    if isinstance(error, Refused | ValueError):
        return str(error)
    return _behind_the_port(error, tls=tls) or _as_told(error)


def _as_told(error: Exception) -> str:
    text = _told(error)
    if not text:
        refused = isinstance(error, exceptions.ResponseError)
        text = "answered with an error" if refused else type(error).__name__
    code = text.split(" ", 1)[0]
    if code in ADVICE:
        return ADVICE[code]
    if isinstance(error, exceptions.TimeoutError | TimeoutError):
        return "no answer while connecting"
    for told, ours in REASONS.items():
        if told in text:
            return ours
    if isinstance(error, exceptions.RedisError | OSError):
        return text[:200]
    return f"connecting raised {type(error).__name__}; look through OPTIONS, and the URL's query"


def stranger(first: bytes) -> str:
    """What is there instead of a node, told by its first byte; "" if that may be a node's."""
    if first in b"+-:$*":
        return ""
    return {b"\x15": TLS, b"H": WEB_SERVER, b"<": WEB_SERVER}.get(first, STRANGER)


def _behind_the_port(error: Exception, *, tls: bool) -> str:
    """What is there instead of what the URL says, as far as that shows; or ""."""
    text = f"{error} {error.__context__ or ''}"
    if not tls:
        return PERHAPS_TLS if any(sign in text for sign in ENDED) else ""
    if any(sign in text for sign in NOT_IN_TLS):
        return NO_TLS
    late = isinstance(error, exceptions.TimeoutError) and "handshake" in text
    return PERHAPS_NO_TLS if late or any(sign in text for sign in ENDED_IN_TLS) else ""


def _printable(text: str) -> str:
    """``text`` with what would steer a terminal, or break a line of a log, escaped."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def _told(error: Exception) -> str:
    """What the error says, begun by its code, as Redis 7.0 and later put it."""
    text = IN_A_SCRIPT.sub("", str(error))
    return f"NOPERM {text}" if text.startswith(DENIED_IN_A_SCRIPT) else text
