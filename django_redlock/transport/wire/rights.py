"""The commands that a user of the nodes must be allowed, and how to try each without an effect.

The scripts call most of them, with the rights of the user. Each is sent here in a form that changes
nothing: for a key that does not exist, or with arguments that the server refuses after it has
looked at the rights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django_redlock.core.protocol import Command
from django_redlock.core.reasons import Reason, ReasonCode

from .refusals import complaint
from .scripts import TEXT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hiredis import ReplyError

KEY: Final = "{key}"
HELD: Final = "{prefix}held"
FENCES: Final = "{prefix}fences"
QUEUE: Final = "{prefix}queue:{name}"

# By their names in an ACL; in the order of the documentation.
TRIES: Final[dict[str, tuple[str, ...]]] = {
    "eval": ("EVAL", "return 1", "0"),
    "evalsha": ("EVALSHA", "0" * 40, "0"),
    "script|load": ("SCRIPT", "LOAD", TEXT[Command.LOOK]),
    "get": ("GET", KEY),
    "set": ("SET", KEY, "1", "XX", "PX", "1"),
    "del": ("DEL", KEY),
    "pexpire": ("PEXPIRE", KEY, "1"),
    "pttl": ("PTTL", KEY),
    "time": ("TIME",),
    "hget": ("HGET", FENCES, "0"),
    "hmget": ("HMGET", FENCES, "0"),
    "hset": ("HSET", KEY, "a", "1", "b"),  # a value is missing
    "zadd": ("ZADD", KEY, "XX", "0", "a"),
    "zrem": ("ZREM", KEY, "a"),
    "zscore": ("ZSCORE", HELD, "a"),
    "zrangebyscore": ("ZRANGEBYSCORE", HELD, "0", "0"),
    "zremrangebyscore": ("ZREMRANGEBYSCORE", KEY, "0", "0"),
    "zremrangebyrank": ("ZREMRANGEBYRANK", KEY, "0", "0"),
    "rpush": ("RPUSH", QUEUE, "1"),  # the one that writes: see UNDO
    "lpop": ("LPOP", QUEUE),
    "blpop": ("BLPOP", QUEUE, "0.001"),
    "info": ("INFO", "server"),
    "select": ("SELECT", "{db}"),
    "client|id": ("CLIENT", "ID"),
    "client|unblock": ("CLIENT", "UNBLOCK", "0"),
}
# redis-py needs them for OPTIONS['client_name'], where logging in tells, and works without.
UNTRIED: Final = frozenset({"client|setname", "client|setinfo"})
WRITES: Final = "rpush"
UNDO: Final = ("DEL", QUEUE)


def harmless() -> Iterator[str]:
    """Yield the commands whose tries have no effect."""
    return (name for name in TRIES if name != WRITES)


def filled(command: tuple[str, ...], *, prefix: str, name: str, db: int) -> tuple[str, ...]:
    """Return a command for the keys of a deployment.

    Args:
        name: of a lock that nobody takes.
        db: number of the database.
    """
    places = {
        KEY: f"{prefix}lock:{name}",
        HELD: f"{prefix}held",
        FENCES: f"{prefix}fences",
        QUEUE: f"{prefix}queue:{name}",
        "{db}": str(db),
    }
    return tuple(places.get(part, part) for part in command)


class Rights:
    """Collect what the tries have shown.

    Attributes:
        denied: the commands that the user may not run.
        keys_denied: whether it may not use keys under the prefix.
        complaints: other things that are wrong, such as a key of somebody else's.
    """

    def __init__(self) -> None:
        self.denied: list[str] = []
        self.keys_denied = False
        self.complaints: list[Reason] = []

    def note(self, name: str, error: ReplyError) -> None:
        """Note the error reply to a try."""
        reason = complaint(error)
        if reason.code is ReasonCode.ERROR:
            # Refused for its arguments, as was meant; or the server does not know it.
            if "unknown command" in str(error).lower():
                self.denied.append(name)
        elif reason.code is ReasonCode.READ_ONLY:
            pass  # a replica, as its INFO tells
        elif reason.code is not ReasonCode.NO_PERMISSION:
            if reason not in self.complaints:
                self.complaints.append(reason)
        elif " key" in str(error) and "access" in str(error):
            self.keys_denied = True
        else:
            self.denied.append(name)
