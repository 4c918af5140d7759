"""What the lines of a history say; ``dev.soak.notebook`` writes and reads them.

Times are those of the monotonic clock, which all processes of a machine share.

    rig       ttl, majority, seed           how it is played
    sent      key, number, id, before, at, duplicate, probe
    taken     id, times                     a worker has the message, which was put off so often
    put off   id, times                     a worker has sent the message for later
    begin     key, number, run, fence, pid, group, at
    end       key, run, pid, at             of the body
    returned  key, run, pid, at             the lock is released, and the result is stored
    lost      pid, fence, until, at         a lease was lost; its holder had it until then
    record    run, pid, at                  a majority of the nodes has the completion record
    dead      group, pids, at               these processes have been killed
    node      index, does, at               what was done to a lock node
    held      key, pid, until, at           a majority has the lock of a dead process for so long
    left      kind, key, id, nodes          what is on so many nodes at the end
    undrained messages                      so many were left when nobody waited any longer
    ready                                   a worker takes messages
"""

from __future__ import annotations

from collections.abc import Sequence

MODES = ("while_running", "until_started", "until_finished")


def key_of(modes: Sequence[str], index: int) -> str:
    """Return the key of this index; its mode is in front."""
    return f"{modes[index % len(modes)]}-{index}"
