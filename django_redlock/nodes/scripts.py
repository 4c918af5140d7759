"""The Lua scripts that run on a node, a file each in ``lua``, and what their replies mean.

The handshake loads all scripts; from then on requests name them by digest (``EVALSHA``). A node
that has forgotten one (``SCRIPT FLUSH``) is sent the text. Every script is atomic on its node.

Keys of one deployment, all under one prefix (see ``protocol.LockKeys``):

    {prefix}lock:{name}  STRING  ``nonce:g:label``, with an expiry
    {prefix}fences       HASH    1,024 counters (fields "0" to "1023"), ``epoch``, ``empty``
    {prefix}held         ZSET    names by the node's time of their expiry, in milliseconds
    {prefix}waits        ZSET    names that have waiters, by the time until which that is believed
    {prefix}queue:{name} LIST    of one wake-up, or none; waiters are blocked on it
    {prefix}mark:{name}  STRING  ``nonce:ttl:id`` of a queued task, with an expiry
    {prefix}marks        ZSET    names of marks, as ``held``
    {prefix}records      ZSET    names of the last completion records, as ``held``
    {prefix}once         ZSET    names of the last records of work that is done once, as ``held``

The name of a slot of a limited lock is the user's, the character ``core.slots.MARK`` and the slot.

``g`` is the number this node gave with the grant; it never changes during a lease. A lock can have
five more values, all without a nonce, so that no client can extend, raise or adopt them:
``rest::label`` keeps a name taken for a while; ``next::`` reserves it for the woken waiter;
``done::label`` records that the work of a lease is done, and ``once::at:label`` when;
``revoked:digest:label, why`` was taken
away from the holder whose nonce has this digest, and only who releases with that nonce lets it go.

Every reply is a list that begins with the caller's nonce, echoed, and an outcome that no other
script uses, so that a reply to another request is recognised (an interrupted read can leave a
connection one reply out of step). The outcome is the script's own (GRANTED, KEPT, FREED …; a
third item has the number or the data), or one of

    HELD   refused: milliseconds left (-1: no expiry), the holder's label (or ""), a digest of
           the owner ("": reserved), which name; of a slot, also the milliseconds left of each
           slot (-2: free, -3: reserved)
    TAKEN  refused: the other task id, a digest of the attempt that marked it ("": it runs), and
           for how many milliseconds the mark has been there
    DONE   refused as by HELD: the name is a completion record
    ONCE   refused as by HELD, and when the work was done, in milliseconds
    GONE   refused: the key is missing or carries another nonce
    EMPTY  refused: the node lost its data, or was promoted, and was not admitted since

Numbers: Lua prints large numbers as 1.79e+15, hence ``string.format('%.0f')`` for what becomes
part of a text; an argument of ``redis.call`` keeps every digit. A counter is a double, exact up to
2^53 microseconds since 1970, which is the year 2255.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Final

from django_redlock.core.commands import COMMANDS


def _read(name: str) -> str:
    """Return a script without the comment at its top, which no node needs."""
    text = (resources.files(__package__) / "lua" / f"{name}.lua").read_text(encoding="utf-8")
    rows = text.splitlines(keepends=True)
    while rows[0].startswith("--"):
        del rows[0]
    return "".join(rows)


ADMIT: Final = _read("admit")

TEXT: Final = {each.command: _read(each.command.value) for each in COMMANDS}

DIGEST: Final = {
    command: hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    for command, text in TEXT.items()
}
