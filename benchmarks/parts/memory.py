"""The parts about the memory of the process that takes locks: garbage, and what a lease weighs."""

from __future__ import annotations

from typing import Any

from benchmarks.clients import Client
from benchmarks.processes import GRACE_SECONDS, Processes
from benchmarks.result import Result
from benchmarks.stage import Stage
from benchmarks.turns import spread

LOCKS = 1000
GARBAGE = (
    Client("threads", "inside", "garbage of threads"),
    Client("asyncio, one task", "inside", "garbage of one task"),
    Client(f"asyncio, {LOCKS:,} tasks", "inside", "garbage of many tasks"),
)
MEMORY = (
    Client("threads", "inside", "memory of threads"),
    Client("asyncio", "inside", "memory of tasks"),
)
PATIENT = 5.0  # our NODE_TIMEOUT, for tracing makes the client slow
SLOW = 0.02  # seconds for which a lease may be taken and released while memory is traced


def garbage(stage: Stage) -> Result:
    """Objects in cycles, which only the garbage collector frees."""
    result = Result(
        f"Cyclic garbage of {LOCKS:,} locks",
        "Objects that only Python's garbage collector frees, counted by it: what the locks have "
        "left, and what the same loop leaves with bare futures in place of the locks.",
    )
    with Processes(stage, GARBAGE, NODE_TIMEOUT=PATIENT) as processes:
        for each in processes.present:
            program = processes.program(each)
            program.tell({"style": each.style, "name": f"bench:{each.style}", "pairs": LOCKS})
            said = program.hear(2 * GRACE_SECONDS) or {"locks": None, "futures": None}
            beyond = None if said["locks"] is None else said["locks"] - said["futures"]
            result.rows.append(
                {
                    "": each.label,
                    "by locks": said["locks"],
                    "by bare futures": said["futures"],
                    "beyond": beyond,
                }
            )
            result.figures[f"cyclic garbage of {LOCKS:,} locks, {each.label}"] = spread([beyond])
    result.missing, result.versions = processes.missing, processes.versions
    return result


def memory(stage: Stage) -> Result:
    """Bytes of many leases that are held and renewed, in the client's process."""
    leases, ttl = stage.effort.leases, stage.effort.ttl
    result = Result(
        f"Memory of {leases:,} held leases, in the client's process",
        f"Bytes for each, as Python's tracemalloc counts them. The leases have a ttl of {ttl:g} s "
        "and are renewed.",
    )
    options: dict[str, Any] = {
        "MAX_TTL": ttl,
        "TTL": ttl,
        "NODE_TIMEOUT": PATIENT,
        "RESTART_GUARD": False,
    }
    with Processes(stage, MEMORY, **options) as processes:
        for each in processes.present:
            program = processes.program(each)
            order = {"style": each.style, "name": f"bench:{each.style}", "leases": leases}
            program.tell(order | {"seconds": ttl / 3 + 0.5})  # each is renewed once
            said = program.hear(ttl + 2 * GRACE_SECONDS + SLOW * leases) or {}
            held, left = (
                said[what] / leases if what in said else None for what in ("held", "left")
            )
            lost = said.get("lost", leases)
            result.rows.append(
                {
                    "": f"django-redlock, {each.label}",
                    "while held": held,
                    "left after the release": left,
                    "failed": f"{lost} lost" if lost else "0",
                }
            )
            result.figures |= {
                f"bytes of a held lease, {each.label}": spread([held]),
                f"bytes left of a released lease, {each.label}": spread([left]),
            }
    result.missing, result.versions = processes.missing, processes.versions
    return result
