"""Worlds in which all want the same few names, and wait for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from .profiles import CALM, LATE, SOON, profile

WANTED: Final[dict[str, Any]] = {
    "nodes": (1, 2, 3, 3, 4, 5, 5, 6, 7),
    "clients": (2, 8),
    "names": 1,
    "many": 0.0,
    "think": 0.3,
    "hold": 0.2,
    "extend": 0.1,
    "give": 0.0,
    "rest": 0.0,
    "reachable": False,
    "wait": (0.0, 0.5, float("inf"), float("inf")),
    "seconds": 2.0,
}
QUIET: Final = replace(CALM, **WANTED)
LONG: Final = replace(QUIET, ttls=(3.0,), hold=0.05, think=0.6)  # nobody waits for a key's end
ROUGH: Final = replace(profile("rough"), **{**WANTED, "pause": 0.0, "cancel": 0.02, "die": 0.0})
DEADLY: Final = replace(QUIET, die=0.15, extend=0.3, clients=(4, 8), patience=SOON)

WAITING: Final = (
    replace(
        QUIET,
        name="queued",
        about="A network without faults; everybody waits, often several threads of a process.",
        threads=2,
        patience=SOON,
        orderly=0.1,
    ),
    replace(
        QUIET,
        name="queued-giving-up",
        about="The same, and those who wait are interrupted, or give up, all the time.",
        cancel=0.9,
        clients=(3, 6),
        latency=0.003,
        wait=(0.05, 0.2, float("inf"), float("inf")),
        seconds=1.5,
        threads=2,
        patience=SOON,
        orderly=0.1,
    ),
    replace(
        QUIET,
        name="queued-for-two",
        about="Two names on one counter, often wanted together.",
        names=2,
        many=0.5,
        clients=(3, 5),
        hold=0.5,
        wait=(float("inf"),),
        seconds=1.5,
        patience=SOON,
    ),
    replace(
        DEADLY,
        name="queued-after-deaths",
        about="Holders die; what is left of them is their keys, until the ttl is over.",
        ttls=(0.4,),  # one for all, so that nobody's end comes before his predecessor's
    ),
    replace(
        DEADLY,
        name="queued-after-short-ttls",
        about="The same, and a holder may be dead sooner than the one before him said.",
        think=0.01,  # all stand there, and nobody who comes by finds the name free
        ttls=(0.05, 0.8),
        wait=(float("inf"),),
        patience=LATE,
    ),
    replace(
        QUIET,
        name="queued-after-rests",
        about="Releases with `min_hold`, which wake nobody.",
        rest=0.4,
        clients=(4, 8),
        patience=LATE,
    ),
    replace(
        ROUGH,
        name="queued-lossy",
        about="Messages are late and lost, wake-ups as well; clients are suspended.",
        loss=0.05,
        pause=0.02,
        patience=LATE,
    ),
    replace(
        LONG,
        name="queued-losing-releases",
        about="Messages are lost, releases as well; what they leave at a node lasts for long.",
        loss=0.05,
        clients=(2, 3),
        ttls=(6.0,),
        think=6.0,  # longer than anybody should have to wait, so that nobody else frees it
        hold=0.2,
        patience=LATE,
        seconds=10.0,
    ),
    replace(
        LONG,
        name="queued-dying",
        about="Those who wait die, first in line or not; nodes see it late, or never.",
        dies_waiting=0.1,
        clients=(4, 8),
        patience=LATE,
        seconds=2.5,
    ),
    replace(
        QUIET,
        name="queue-hangs",
        about="The node of the queue hangs for a while, again and again.",
        stalls=0.5,
        patience=LATE,
    ),
    replace(
        QUIET,
        name="queue-restarts",
        about="Nodes restart or are emptied, and forget their queues.",
        restarts=0.6,
        flush=0.5,
        wall=0.0,
        patience=LATE,
        seconds=2.5,
    ),
    replace(
        LONG,
        name="queued-beside-others",
        about="Another program takes the name as well; its releases wake nobody.",
        foreign=True,
        clients=(2, 4),
        wait=(float("inf"),),
        patience=LATE,
        seconds=3.0,
    ),
    replace(
        LONG,
        name="queued-for-slots",
        about="Two may hold the name; those who wait for a slot are interrupted or give up.",
        limit=2,
        clients=(5, 9),
        threads=3,
        latency=0.005,
        cancel=0.2,
        hold=0.15,
        think=2.0,  # so that it is the waiters who take a slot, and nobody who comes by
        wait=(0.4, float("inf"), float("inf")),
        seconds=3.0,
        patience=SOON,
    ),
    replace(
        ROUGH,
        name="queued-for-slots-lossy",
        about="Three may, messages are late and lost, clients are suspended, die and hand over.",
        limit=3,
        clients=(5, 9),
        loss=0.05,
        pause=0.02,
        die=0.1,
        give=0.1,
        extend=0.3,
        patience=LATE,
    ),
)
