"""The Lua that runs on a node, a file each in ``lua``, and what its answers mean.

Whoever opens a connection loads them all; from then on their digests are sent (``EVALSHA``). A
node that has forgotten one (``SCRIPT FLUSH``) is sent the text. Every script is atomic on its node.

Keys of one deployment, all under one prefix (see ``protocol.LockKeys``):

    {prefix}lock:{name}  STRING  ``nonce:g:label``, with an expiry
    {prefix}fences       HASH    1,024 counters (fields "0" to "1023"), ``epoch``, ``empty``
    {prefix}held         ZSET    names by the node's time of their expiry, in milliseconds
    {prefix}waits        ZSET    names that somebody waits for, by the time when that is old news
    {prefix}queue:{name} LIST    of one word, or none; who waits is blocked on it

``g`` is the number this node gave with the grant; it never changes during a tenancy. Two more
values can stand there, both without a nonce, so that nobody can extend, raise or release them:
``rest::label`` keeps a name taken for a while; ``next::`` keeps it for whoever is woken next.

Every answer is a list that begins with the caller's nonce, echoed, and a word that no other
script uses, so that an answer which belongs to another question is recognised (an interrupted
read can leave a connection one reply out of step). That word is the script's own (GRANTED,
KEPT, FREED …; a third item carries the number or the data), or one of

    HELD   refused: milliseconds left (-1: no expiry), the holder's label (or ""), a digest of
           the owner ("": reserved), which name
    GONE   refused: the key is missing or carries another nonce
    EMPTY  refused: the node lost its data and was not admitted since

Numbers: Lua prints large numbers as 1.79e+15, hence ``string.format('%.0f')``. A counter is
a double, exact up to 2^53 microseconds since 1970, which is the year 2255.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Final

from django_redlock.core.protocol import Command


def _read(name: str) -> str:
    """The script without the comment above it, which no node needs."""
    text = (resources.files(__package__) / "lua" / f"{name}.lua").read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    while lines[0].startswith("--"):
        del lines[0]
    return "".join(lines)


ADMIT: Final = _read("admit")

TEXT: Final = {
    each: _read(each.name.lower())
    for each in (
        Command.GRANT,
        Command.RAISE,
        Command.EXTEND,
        Command.RELEASE,
        Command.REST,
        Command.RETURN,
        Command.LOOK,
        Command.CLAIM,
        Command.SURVEY,
        Command.INDEX,
        Command.MEMORY,
    )
}

DIGEST: Final = {
    command: hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    for command, text in TEXT.items()
}
