"""Measure, print the figures beside their goals, and say which were met.

The exit code is 0 also when a goal was missed; the table says so. With ``--against`` it is 1 when
the newer revision is slower, and 2 when there is no such revision, see ``revisions.verdict``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.settings")

import django
from rich.console import Console

from django_redlock.testing import EmbeddedNodes

from . import goals, report, store
from .parts import (
    before,
    costs,
    faults,
    fencing,
    handover,
    healthy,
    idempotency,
    imports,
    memory,
    network,
    publishing,
    renewal,
    runs,
    single,
    tasks,
    threads,
    watching,
)
from .peers import PeerUnavailable
from .result import Result
from .revisions import checkout, compare
from .revisions.checkout import Revision
from .stage import FULL, NODES, PROCESSORS, QUICK, TINY, Stage

PARTS: Mapping[str, Callable[[Stage], Result]] = {
    "healthy": healthy.pinned,
    "unpinned": healthy.unpinned,
    "threads": threads.threads,
    "tasks": tasks.tasks,
    "burst": tasks.burst,
    "settings": tasks.documented,
    "one-node": single.one_node,
    "delayed": network.delayed,
    "hung": faults.hung,
    "refused": faults.refused,
    "decorators": healthy.decorators,
    "held": costs.held,
    "traffic": costs.traffic,
    "garbage": memory.garbage,
    "memory": memory.memory,
    "import": imports.imports,
    "handover": handover.hand_over,
    "renewal": renewal.part,
    "publishing": publishing.publishing,
    "runs": runs.runs,
    "fencing": fencing.fencing,
    "idempotency": idempotency.idempotency,
    "watching": watching.watching,
    "before": before.before,
}
EFFORTS = {"full": FULL, "quick": QUICK, "tiny": TINY}


def main() -> int:
    """Run the benchmark."""
    options = _options()
    django.setup()
    if not options.against:
        with _stage(options) as stage:
            _write(options, _about(stage, options.effort), _parts(stage, options))
        return 0
    try:
        return _compare(options)
    except (checkout.NoSuchRevisionError, PeerUnavailable) as error:
        print(error, file=sys.stderr)
        return 2


@contextmanager
def _stage(options: argparse.Namespace) -> Iterator[Stage]:
    effort = EFFORTS[options.effort]
    with EmbeddedNodes(NODES) as nodes:
        yield Stage(nodes, effort._replace(rounds=options.turns or effort.rounds))


def _compare(options: argparse.Namespace) -> int:
    """Measure two revisions; 1 when the newer one is slower or fails."""
    with tempfile.TemporaryDirectory() as home:
        revisions = _revisions(options, Path(home))
        with _stage(options) as stage:
            about = _about(stage, options.effort)
            result = compare.compare(stage, *revisions)
    _write(options, about, {"against": result})
    return int(compare.is_bad(result))


def _parts(stage: Stage, options: argparse.Namespace) -> dict[str, Result]:
    console, results = Console(stderr=True), {}
    for name in options.only or PARTS:
        start = time.monotonic()
        results[name] = PARTS[name](stage)
        console.print(f"{name}: {time.monotonic() - start:.0f} s")
    return results


def _revisions(options: argparse.Namespace, home: Path) -> tuple[Revision, Revision]:
    """The older one and the newer one."""
    old = checkout.checkout(options.against, home / "old")
    if options.of:
        return old, checkout.checkout(options.of, home / "new")
    return old, checkout.working_tree(home / "new")


def _write(
    options: argparse.Namespace,
    about: dict[str, str],
    results: Mapping[str, Result],
) -> None:
    """Print it, and write it wherever that was asked for."""
    listed = list(results.values())
    for result in listed:
        about |= result.versions
    verdicts = [] if options.against else goals.judge(listed)
    report.show(listed, verdicts)
    found = report.as_json(about, results, verdicts)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    if options.markdown:
        options.markdown.write_text(report.as_markdown(about, listed, verdicts))
    if options.readme:
        report.into_readme(options.readme, report.milliseconds(about, listed))
    if options.store:
        print(f"stored: {store.store(found).name}")


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
    parser.add_argument("--store", action="store_true", help="keep it in benchmarks/results")
    parser.add_argument("--json", type=Path, help="write everything there, too")
    parser.add_argument("--markdown", type=Path, help="write the tables there, too")
    parser.add_argument("--readme", type=Path, help="write the short table into this file")
    options = parser.parse_args()
    if options.readme and (options.against or "unpinned" not in (options.only or PARTS)):
        parser.error("--readme needs the part unpinned")
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
