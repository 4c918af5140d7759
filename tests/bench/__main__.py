"""Measure, print the figures beside their goals, and say which were met.

Everything is measured in turns within one run, because a machine's speed drifts: quote the
ratios. The exit code is 0 also when a goal was missed; the table says so.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from rich.console import Console
from rich.table import Table

from django_redlock import conf, redlock
from django_redlock.protocol import Ask, Command, Vote
from django_redlock.testing import EmbeddedNodes

from .sockets import EPOCH, Sockets

GOALS = {
    "threads / sockets": 1.5,
    "one node hung / healthy": 1.3,
    "round trips to acquire": 1.0,
    "@single_flight / with redlock(...)": 1.5,
    "@locked_task / with redlock(...)": 1.5,
}


def main() -> int:
    """Run the benchmark."""
    options = _options()
    django.setup()
    from django.test import override_settings

    with EmbeddedNodes(5) as nodes:
        _apart(nodes)
        alias = nodes.settings(MAX_TTL=5, NODE_TIMEOUT=0.05)
        with override_settings(REDLOCK={"default": alias}):
            figures = _measure(nodes, options.rounds, options.pairs)
    _show(figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("--rounds", type=int, default=30, help="turns of each contestant")
    parser.add_argument("--pairs", type=int, default=150, help="acquire + release per turn")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    return parser.parse_args()


def _apart(nodes: EmbeddedNodes) -> None:
    """Client and nodes on different processors, where there are two: as on different machines.

    Otherwise the scheduler may put a node in the client's place at each message, or may not,
    for the whole of a run; that would be measured.
    """
    if hasattr(os, "sched_setaffinity") and len(processors := sorted(os.sched_getaffinity(0))) > 1:
        for node in nodes:
            for task in Path(f"/proc/{node.pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), processors[1:])
        os.sched_setaffinity(0, processors[:1])


def _measure(nodes: EmbeddedNodes, rounds: int, pairs: int) -> dict[str, float]:
    sockets = Sockets([(node.host, node.port) for node in nodes], "bench:", 5)
    contestants: dict[str, Callable[[], object]] = {
        "sockets": lambda: sockets.pair("bench"),
        "threads": _pair,
    }
    for node in nodes:
        node.client().hset("bench:fences", "epoch", EPOCH)
    healthy = _turns(contestants, rounds, pairs)
    figures = {f"{name}, µs a pair": value for name, value in healthy.items()}
    figures["threads / sockets"] = healthy["threads"] / healthy["sockets"]
    figures |= _decorators(rounds, pairs)
    figures["round trips to acquire"] = _round_trips(pairs)
    figures["one node hung / healthy"] = _hung(nodes, rounds, pairs)
    sockets.close()
    return figures


def _pair() -> None:
    with redlock("bench"):
        pass


def _decorators(rounds: int, pairs: int) -> dict[str, float]:
    """What the decorators cost, as a ratio to the bare lock: an empty view, an empty task."""
    from django_redlock.celery import locked_task
    from django_redlock.views import single_flight

    @single_flight
    def view(_: HttpRequest) -> HttpResponse:
        return response

    @locked_task
    def task(_: int) -> None:
        pass

    request, response = RequestFactory().post("/bench"), HttpResponse()
    calls: dict[str, Callable[[], object]] = {
        "bare": _pair,
        "@single_flight": lambda: view(request),
        "@locked_task": lambda: task(1),
    }
    taken = _turns(calls, rounds, pairs)
    return {
        f"{name} / with redlock(...)": taken[name] / taken["bare"]
        for name in calls
        if name != "bare"
    }


def _turns(
    contestants: dict[str, Callable[[], object]], rounds: int, pairs: int
) -> dict[str, float]:
    """Microseconds of one call of each: the median over the turns of each turn's median."""
    medians: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for name, call in contestants.items():
            median = _median(call, pairs)
            if turn:  # the first warms up
                medians[name].append(median)
    return {name: statistics.median(values) for name, values in medians.items()}


def _median(call: Callable[[], object], count: int) -> float:
    taken = []
    for _ in range(count):
        start = time.perf_counter_ns()
        call()
        taken.append((time.perf_counter_ns() - start) / 1000)
    return statistics.median(taken)


def _hung(nodes: EmbeddedNodes, rounds: int, pairs: int) -> float:
    """Median over the turns of (one node stopped) / (all well), in pairs of turns."""
    ratios = []
    for _ in range(rounds // 2):
        well = _median(_pair, pairs)
        nodes.pause(2)
        try:
            hung = _median(_pair, pairs)
        finally:
            nodes.resume(2)
        ratios.append(hung / well)
        for _ in range(20):  # the late answers arrive
            _pair()
    return statistics.median(ratios)


def _round_trips(pairs: int) -> float:
    """Questions put to the nodes for one acquire, on average."""
    group = conf.backend("default").group
    asked: list[Command] = []
    put = group.ask

    def ask(question: Ask) -> Sequence[Vote]:
        asked.append(question.command)
        return put(question)

    with mock.patch.object(group, "ask", ask):
        for _ in range(pairs):
            _pair()
    return sum(command is not Command.RELEASE for command in asked) / pairs


def _show(figures: dict[str, float]) -> None:
    table = Table(title="acquire + release on five nodes, one run")
    table.add_column("figure")
    table.add_column("measured", justify="right")
    table.add_column("goal", justify="right")
    for name, value in figures.items():
        goal = GOALS.get(name)
        said = "" if goal is None else f"≤ {goal:g} {'met' if value <= goal else 'MISSED'}"
        table.add_row(name, f"{value:.2f}", said)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
