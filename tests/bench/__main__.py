"""Measure, print the figures beside their goals, and say which were met.

The exit code is 0 also when a goal was missed; the table says so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django
from rich.console import Console

from django_redlock.testing import EmbeddedNodes

from . import costs, decorators, goals, handover, renewal, report, scenarios
from .results import Result
from .stage import FULL, NODES, PROCESSORS, QUICK, TINY, Stage

PARTS: Mapping[str, Callable[[Stage], Result]] = {
    "healthy": scenarios.healthy,
    "tasks": scenarios.tasks,
    "burst": scenarios.burst,
    "delayed": scenarios.delayed,
    "hung": scenarios.hung,
    "refused": scenarios.refused,
    "decorators": decorators.decorators,
    "held": costs.held,
    "traffic": costs.traffic,
    "handover": handover.hand_over,
    "renewal": renewal.part,
}
EFFORTS = {"full": FULL, "quick": QUICK, "tiny": TINY}


def main() -> int:
    """Run the benchmark."""
    options = _options()
    django.setup()
    console, results = Console(stderr=True), {}
    with EmbeddedNodes(NODES) as nodes:
        stage = Stage(nodes, EFFORTS[options.effort])
        about = _about(stage, options.effort)
        for name in options.only or PARTS:
            start = time.monotonic()
            results[name] = PARTS[name](stage)
            console.print(f"{name}: {time.monotonic() - start:.0f} s")
    verdicts = goals.judge(list(results.values()))
    for result in results.values():
        about |= result.versions
    report.show(list(results.values()), verdicts)
    if options.json:
        found = report.as_json(about, results, verdicts)
        options.json.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    if options.markdown:
        options.markdown.write_text(report.as_markdown(about, list(results.values()), verdicts))
    if options.readme:
        report.into_readme(options.readme, about, verdicts)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description="What a lock costs.")
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}"
    )
    parser.add_argument(
        "--quick", dest="effort", action="store_const", const="quick", default="full"
    )
    parser.add_argument("--effort", choices=EFFORTS, help="quick is --quick; tiny proves nothing")
    parser.add_argument("--json", type=Path, help="write everything there, too")
    parser.add_argument("--markdown", type=Path, help="write the tables there, too")
    parser.add_argument("--readme", type=Path, help="renew the short table in this file")
    return parser.parse_args()


def _about(stage: Stage, effort: str) -> dict[str, str]:
    with closing(stage.nodes[0].client(socket_timeout=30)) as client:
        server = client.info("server")
    name = server.get("server_name", "redis")
    return {
        "effort": effort,
        report.LOAD: f"{os.getloadavg()[0]:.1f}",
        "processors": str(len(PROCESSORS) or os.cpu_count()),
        "Python": platform.python_version(),
        "nodes": f"{NODES} × {name} {server.get(f'{name}_version', server['redis_version'])}",
    }


if __name__ == "__main__":
    sys.exit(main())
