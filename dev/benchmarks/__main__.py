"""Measure, print the figures beside their goals, and say which were met.

The exit code is 0 also when a goal was missed; the table says so. With ``--against`` it is 1 when
the newer revision is slower, and 2 when there is no such revision.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import django
from django.conf import settings

from django_redlock.testing import EmbeddedNodes

from . import (
    against,
    ill,
    lock,
    message,
    node,
    one_node,
    rate,
    renewal,
    report,
    waiting,
)
from .measure import Result
from .peers import PeerError
from .stage import FULL, NODES, PROCESSORS, QUICK, TINY, Stage

PARTS: Mapping[str, Callable[[Stage], Result]] = {
    "healthy": lock.pinned,
    "unpinned": lock.unpinned,
    "threads": rate.threads,
    "tasks": rate.tasks,
    "burst": rate.burst,
    "settings": rate.settings,
    "one-node": one_node.one_node,
    "delayed": lock.delayed,
    "hung": ill.hung,
    "refused": ill.refused,
    "decorators": lock.decorators,
    "held": node.held,
    "traffic": node.traffic,
    "handover": waiting.waiting,
    "renewal": renewal.renewal,
    "publishing": message.publishing,
    "runs": message.runs,
}
EFFORTS = {"full": FULL, "quick": QUICK, "tiny": TINY}
PROJECT: dict[str, Any] = {
    "SECRET_KEY": "not a secret: the benchmark protects nothing",
    "USE_TZ": True,
    "INSTALLED_APPS": ["django.contrib.contenttypes", "django.contrib.auth", "django_redlock"],
    "REDLOCK": {"default": {"NODES": [f"memory://default-{number}" for number in range(NODES)]}},
}


def main() -> int:
    """Run the benchmark."""
    options = _options()
    settings.configure(**PROJECT)
    django.setup()
    effort = EFFORTS[options.effort]
    try:
        with tempfile.TemporaryDirectory() as folder, EmbeddedNodes(NODES) as nodes:
            stage = Stage(nodes, effort._replace(rounds=options.turns or effort.rounds))
            about = _about(stage, options.effort)
            results = _results(stage, options, Path(folder))
    except (against.NoSuchRevisionError, PeerError) as error:
        print(error, file=sys.stderr)
        return 2
    _write(options, about, results)
    return int(bool(options.against) and against.is_bad(results["against"]))


def _results(stage: Stage, options: argparse.Namespace, home: Path) -> dict[str, Result]:
    if options.against:
        old, new = against.checkout(options.against, home / "old"), home / "new"
        newer = against.checkout(options.of, new) if options.of else against.working_tree(new)
        return {"against": against.compare(stage, old, newer)}
    results = {}
    for name in options.only or PARTS:
        begun = time.monotonic()
        results[name] = PARTS[name](stage)
        print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return results


def _write(
    options: argparse.Namespace, about: dict[str, str], results: Mapping[str, Result]
) -> None:
    """Print it, and write it wherever that was asked for."""
    listed = list(results.values())
    print(report.page(about, listed, wide=True))
    if options.json:
        found = report.as_json(about, results)
        options.json.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    if options.figures:
        (options.figures / report.PAGE).write_text(report.page(about, listed))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description="What a lock costs.")
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}"
    )
    parser.add_argument(
        "--quick", dest="effort", action="store_const", const="quick", default="full"
    )
    parser.add_argument("--effort", choices=EFFORTS, help="quick is --quick; tiny proves nothing")
    parser.add_argument(
        "--against", metavar="REV", help="compare with this revision, or a folder with its package"
    )
    parser.add_argument("--of", metavar="REV", help="with --against: this, not the working tree")
    parser.add_argument("--turns", type=int, metavar="N", help="so many, whatever the effort")
    parser.add_argument("--json", type=Path, help="write everything there, too")
    parser.add_argument(
        "--figures", type=Path, metavar="FOLDER", help="write its page of figures, too"
    )
    options = parser.parse_args()
    if options.figures and (options.against or "unpinned" not in (options.only or PARTS)):
        parser.error("--figures needs the part unpinned")
    if options.against and options.only:
        parser.error("--against has parts of its own")
    if options.of and not options.against:
        parser.error("--of is for --against")
    return options


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
