"""Very many double submits to real servers; each must be one order.

    python -m dev.soak.views.double_submits

plays on each server, and judges the figures. Each sale waits until the other
request of its pair has been refused or is in the view as well, so the two overlap, however slow the
machine is. In each play

    one customer clicks twice       there is one order, and the second request is refused
    two customers click             both order, and no two customers have had a lock of one name
    one clicks twice, no decorator  there are duplicates: the check can fail

Prints one table, and what is wrong.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dev.soak import verdict
from dev.soak.verdict import Played
from django_redlock.testing import EmbeddedNodes
from tests.views.shop.served import Shop, gunicorn, served, uvicorn

SUBMITS = 1_000
UNLOCKED = 100  # double submits without the decorator
WORKERS = 8
# Of something else than time: a node may be slow, and no stall ends a lease.
PATIENTLY = {"NODE_TIMEOUT": 10, "MAX_TTL": 60, "RESTART_GUARD": False}


class Scene(NamedTuple):
    """A server, and a view on it.

    Attributes:
        server: module and arguments, see ``served``.
        view: what the table calls the view.
        locked: its address.
        unlocked: that of the same view without the decorator.
        at_once: how many pairs of requests are under way; each keeps two workers busy.
    """

    server: tuple[str, ...]
    view: str
    locked: str
    unlocked: str
    at_once: int = WORKERS // 2


FUNCTION = ("a function", "/locked/", "/unlocked/")
TOKENS = ("REST framework, tokens", "/token/", "/token-unlocked/")
TASK = ("async def", "/alocked/", "/aunlocked/")
EIGHT = f"--workers={WORKERS}"
DAPHNE = ("daphne", "tests.views.shop.asgi:application", "--fd={socket}", "--verbosity=0")
SCENES = {
    "gunicorn, 8 workers": Scene(gunicorn(EIGHT), *FUNCTION),
    "gunicorn, 8 workers, tokens": Scene(gunicorn(EIGHT), *TOKENS),
    "gunicorn, 2 workers of 4 threads": Scene(
        gunicorn("--workers=2", "--worker-class=gthread", "--threads=4"), *FUNCTION
    ),
    "gunicorn, 2 workers of gevent": Scene(
        gunicorn("--workers=2", "--worker-class=gevent"), *FUNCTION
    ),
    "uvicorn, 8 workers": Scene(uvicorn(EIGHT), *FUNCTION),
    "uvicorn, 8 workers, async": Scene(uvicorn(EIGHT), *TASK),
    "uvicorn, 8 workers, tokens": Scene(uvicorn(EIGHT), *TOKENS),
    "daphne, async": Scene(DAPHNE, *TASK),
}


class Outcome(NamedTuple):
    """How it went.

    Attributes:
        figures: what happened, for people.
        wrong: what must not have happened.
    """

    figures: dict[str, Any]
    wrong: list[str]


def why_not(scene: Scene) -> str:
    """Why it cannot be played here; "" if it can."""
    missing = importlib.util.find_spec(scene.server[0]) is None
    return f"{scene.server[0]} is not installed" if missing else ""


def perform(
    scene: Scene, nodes: EmbeddedNodes, home: Path, submits: int, unlocked: int = UNLOCKED
) -> Outcome:
    """Play it, with so many double submits and the same number of pairs of customers."""
    began = time.monotonic()
    with served(scene.server, home, nodes.settings(**PATIENTLY)) as shop:
        figures, wrong = play(scene, shop, submits, unlocked)
    return Outcome(figures | {"seconds": round(time.monotonic() - began, 1)}, wrong)


def play(scene: Scene, shop: Shop, submits: int, unlocked: int) -> Outcome:
    """Let customers click, and compare what there is with what there must be."""
    twice, orders = shop.double_submits(scene.locked, submits, scene.at_once)
    wrong = []
    if orders != submits or twice != {201: submits, 409: submits}:
        wrong.append(f"{submits} double submits made {orders} orders, and were answered {twice}")
    strangers = [(each, each + 1) for each in range(submits, 2 * submits, 2)]
    apart, both = shop.pairs(scene.locked, strangers, scene.at_once)
    if apart != {201: 2 * len(strangers)} or both != 2 * len(strangers):
        wrong.append(
            f"{2 * len(strangers)} customers made {both} orders at the same time, and were answered"
            f" {apart}"
        )
    names = shop.names()
    shared = {name: whose for name, whose in names.items() if len(whose) > 1}
    if len(names) != submits + 2 * len(strangers):
        wrong.append(f"{submits} + {2 * len(strangers)} customers had locks of {len(names)} names")
    wrong += [f"customers {whose} had locks of one name, {name}" for name, whose in shared.items()]
    bare, more = shop.double_submits(scene.unlocked, unlocked, scene.at_once)
    if not unlocked < more == bare[201]:
        wrong.append(f"without the decorator, {unlocked} double submits made {more} orders: {bare}")
    figures = {
        "double submits": submits,
        "orders": orders,
        "refused": twice[409],
        "customers at once": 2 * len(strangers),
        "their orders": both,
        "names": len(names),
        "for two": len(shared),
        "without the decorator": f"{more} of {unlocked}",
    }
    return Outcome(figures, wrong)


def show(rows: dict[str, dict[str, Any]]) -> None:
    """Print a table for people."""
    heads = list(next(iter(rows.values())))
    lines = [["", *heads]]
    lines += [[name, *(str(row.get(head, "")) for head in heads)] for name, row in rows.items()]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Play on each server, and say how it went."""
    parser = verdict.parser("dev.soak.views.double_submits", __doc__)
    parser.add_argument("--submits", type=int, default=SUBMITS, help="double ones, on each server")
    parser.add_argument("--only", help="servers with this in their name")
    parser.add_argument("--json", action="store_true", help="a line for each server, and no table")
    chosen = parser.parse_args(arguments)
    scenes = {name: scene for name, scene in SCENES.items() if (chosen.only or "") in name}
    if not scenes or chosen.submits < 1:
        parser.error(
            "--submits must be 1 or more, and --only a part of one of: " + "; ".join(SCENES)
        )
    rows: dict[str, dict[str, Any]] = {}
    failed = []
    for name, scene in scenes.items():
        if why_not(scene):
            print(f"{name}: not played, {why_not(scene)}", flush=True, file=sys.stderr)
            continue
        with EmbeddedNodes(5) as nodes, tempfile.TemporaryDirectory() as home:
            outcome = perform(scene, nodes, Path(home), chosen.submits)
        rows[name] = outcome.figures
        failed += [f"{name}: {text}" for text in outcome.wrong]
        if chosen.json:
            print(json.dumps({"server": name} | outcome.figures | {"wrong": outcome.wrong}))
        else:
            print(f"{name}: {outcome.figures['seconds']} s", flush=True)
    if not chosen.json and rows:
        show(rows)
    return verdict.end(failed, Played(len(rows), 1, "servers"))


if __name__ == "__main__":
    sys.exit(main())
