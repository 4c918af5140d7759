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
}

# Before 7.0, Redis puts this before the error that a command in a script got, and gives the refusal
# of an ACL no code. redis-py takes the ERR away.
IN_A_SCRIPT: Final = re.compile(r"^(?:ERR )?Error running script .*?(?:@user_script: ?\d+: )+-?")
DENIED_IN_A_SCRIPT: Final = "The user executing the script can't"


def complaint(error: Exception) -> str:
    """A node's error reply in our words: what to do about it, and nothing secret."""
    text = _told(error)
    code = text.split(" ", 1)[0]
    return ADVICE.get(code) or f"answered with an error: {_printable(text[:200]) or 'no text'}"


def describe(error: Exception) -> str:
    """Why a node could not be reached, without addresses that may carry secrets."""
    if isinstance(error, Refused | ValueError):
        # redis-py reads an error reply strictly.
        return NO_TEXT if isinstance(error, UnicodeError) else str(error)
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
    return type(error).__name__


def _printable(text: str) -> str:
    """``text`` with what would steer a terminal, or break a line of a log, escaped."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def _told(error: Exception) -> str:
    """What the error says, begun by its code, as Redis 7.0 and later put it."""
    text = IN_A_SCRIPT.sub("", str(error))
    return f"NOPERM {text}" if text.startswith(DENIED_IN_A_SCRIPT) else text
