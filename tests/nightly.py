"""Play what only many plays can show, one entry after the other, and append each to a record.

    python -m tests.nightly                              all of it, by a seed that is drawn
    python -m tests.nightly --only soak tests-faults --seed 417
    python -m tests.nightly --list
    python -m tests.nightly --markdown                   the table of the page "What was run"

An entry is a command. The output of one that fails, or finds no end, is printed, and those behind
it are played, too. The exit status is 1 if any failed, 2 when the arguments are wrong, and 130 when
it was interrupted; what had ended before that is in the record.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import IO, Final, NamedTuple
from xml.etree import ElementTree as ET

from django_redlock.testing import EmbeddedNode
from tests.support.servers import software

ROOT: Final = Path(__file__).resolve().parents[1]
RECORD: Final = ROOT / "docs/dev/what-was-run-record.md"
HEADER: Final = """\
<!-- `make nightly` appends a row for each entry. -->

| Date (UTC) | Revision | Entry | N | Seed | Result | Seconds | Versions |
| --- | --- | --- | --- | ---: | --- | ---: | --- |
"""
SEED, FOLDER = "{seed}", "{folder}"  # in a command: the night's seed, a folder that is removed
REPORT: Final = "junit.xml"
GRACE: Final = 30.0  # seconds to clean up, for an entry that is ended
NOTHING_TO_PLAY: Final = 5  # pytest's exit status
INTERRUPTED: Final = 130
FAILED: Final = "FAILED"
NAMED, LONGEST, PRINTED = 10, 200, 200  # tests and characters of a result, lines of an output


# -- the entries ----------------------------------------------------------------------------------


class Entry(NamedTuple):
    """What is played.

    Attributes:
        name: for ``--only`` and the record.
        plays: what it plays, in a sentence.
        amount: N, how much of it; of tests the record has the number that ran.
        command: from the root of the repository.
        limit: seconds after which it is ended.
    """

    name: str
    plays: str
    amount: str
    command: list[str]
    limit: float = 3600.0


# Two workers: the load is not of our own making.
PYTEST = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal"]
PYTEST += ["-p", "randomly", f"--randomly-seed={SEED}"]


def tests(name: str, plays: str, *paths: str) -> Entry:
    """The tests below these paths of `tests/` that are marked `nightly`."""
    command = [*PYTEST, "-m", "nightly", *(f"tests/{path}" for path in paths)]
    command += [f"--junitxml={FOLDER}/{REPORT}", "-o", "junit_family=xunit1"]  # it names the file
    return Entry(f"tests-{name}", plays, "the tests marked `nightly`", command, 7200.0)


def program(name: str, plays: str, amount: str, words: str) -> Entry:
    """A module, and its arguments."""
    return Entry(name, plays, amount, [sys.executable, "-m", *words.split()])


TOP = sorted(path.name for path in ROOT.glob("tests/test_*.py"))
ENTRIES: Final = [
    tests("nodes", "Connections, scripts and late replies on real nodes.", "nodes"),
    tests("locks", "Locks, leases and their contracts.", "locks", "leases", "contracts"),
    tests("faults", "Storms, rolling restarts, interruptions, waiting beside deaths.", "faults"),
    tests("fencing", "Fenced rows on each database.", "fencing"),
    tests("celery", "Workers, pools and brokers that are killed.", "celery"),
    tests("tasks", "Django's own tasks, if it is Django 6.", "tasks"),
    tests("views", "Double and repeated requests to real servers.", "views", "idempotency"),
    tests("django", "Commands, and pages in a browser.", "django"),
    tests("models", "Models and simulated worlds beyond the small.", "core", "simulation"),
    tests("example", "The demo, and walks through its site in a browser.", "example"),
    tests("docs", "Examples of pages that take long.", "docs"),
    tests("interop", "Other people's clients beside this one.", "interop"),
    tests("museum", "The cells of the museum.", "museum"),
    tests("tools", "The benchmark, the matrix of versions and other tools.", "tools"),
    tests("others", "The testing kit, and what is left.", "testing", "inspection", *TOP),
    program(
        *("soak", "Simulated worlds of all profiles.", "5,000 worlds"),
        f"tests.simulation --soak --worlds 5000 --seed {SEED} --state {FOLDER}/state",
    ),
    program(
        *("soak-healing", "Releases while a renewal heals the lease.", "15,000 releases"),
        "tests.faults.healing --releases 15000",
    ),
    program(
        *("soak-busy", "Fresh processes beside busy loops.", "40 runs"),
        "tests.faults.busy --runs 40",
    ),
    program(
        *("soak-interrupts", "Interruptions at random moments.", "2,000 interruptions"),
        f"tests.faults.signals --plays 2000 --seed {SEED}",
    ),
    program(
        *("soak-revoke", "Leases that are taken away beside nodes that die.", "150 leases"),
        "tests.faults.revoking --leases 150",
    ),
    program(
        *("soak-handles", "Leases handed over beside heals, revokes and deaths.", "two minutes"),
        f"tests.faults.handles --seconds 120 --seed {SEED}",
    ),
    program(
        *("soak-run", "Commands under `redlock_run`, each struck by a fault.", "40 commands"),
        "tests.django.plays_of_run --plays 40",
    ),
    program(
        *("soak-leader", "Leaders that are killed, stopped or paused.", "100 kills, 100 stops"),
        "tests.faults.leading",
    ),
    program(
        *("soak-celery", "Messages through workers that are killed.", "2,000 messages"),
        f"tests.celery.soak --messages 2000 --keys 50 --seconds 30 --seed {SEED}",
    ),
    Entry(
        *("soak-tasks", "Django's own tasks, on the newest Python.", "2,000 tasks"),
        ["env", "-u", "MAKEFLAGS", "make", "soak-tasks"],
    ),
    Entry(
        *("soak-backends", "Other people's backends of Django's tasks.", "one play of each"),
        ["env", "-u", "MAKEFLAGS", "make", "soak-backends"],
    ),
    program(
        *("soak-fencing", "Additions by processes that are killed.", "2,000 on each database"),
        f"tests.fencing.counters --additions 2000 --counters 2000 --seed {SEED}",
    ),
    program(
        *("soak-idempotency", "Clients that repeat requests.", "100 on each database"),
        f"tests.idempotency.soak --clients 100 --seed {SEED}",
    ),
    program(
        *("soak-views", "Double submits to real servers.", "100 on each server"),
        "tests.views.soak --submits 100",
    ),
    program(
        *("museum", "Locks that people copy, each broken by a fault.", "one play of some cells"),
        f"museum --short --seed {SEED}",
    ),
    program("demo", "The five acts of the demo.", "one play", "example_project.demo --once"),
    program("bench", "The benchmark runs to its end.", "one rough run", "benchmarks --quick"),
]


# -- one entry ------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What became of an entry: how much was played, how it ended, and after how many seconds."""

    amount: str
    result: str
    seconds: float


def play(entry: Entry, seed: int) -> Outcome:
    """Play it to its end, or to its limit."""
    with tempfile.TemporaryDirectory(prefix="redlock-nightly-") as home:
        report, output = Path(home, REPORT), Path(home, "output")
        command = [each.replace(SEED, str(seed)).replace(FOLDER, home) for each in entry.command]
        began = time.monotonic()
        with output.open("wb") as file:
            status = ended(command, file, entry.limit)
        seconds = time.monotonic() - began
        lines = output.read_text(errors="replace").splitlines()
        told = status is not None and report.exists()  # of what was killed it may be half written
        cases = list(ET.parse(report).iter("testcase")) if told else None  # noqa: S314 - our own
    amount = entry.amount
    if status is None:
        result = f"{FAILED}: no end within {entry.limit:g} s"
    elif cases is None:
        result = of_program(status, lines)
    else:
        skipped = sum(case.find("skipped") is not None for case in cases)
        amount = f"{len(cases) - skipped} tests"
        result = of_tests(status, cases, lines) + f", {skipped} skipped" * (skipped > 0)
    if result.startswith(FAILED):
        print(*lines[-PRINTED:], sep="\n")
    return Outcome(amount, result, seconds)


def ended(command: Sequence[str], output: IO[bytes], limit: float) -> int | None:
    """Run it in a process group of its own; its exit status, or None if there was no end."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.returncode is None:  # it hangs, or we are interrupted
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, signal.SIGINT)  # it may say where it is, and clean up
                process.wait(GRACE)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def of_program(status: int, lines: Sequence[str]) -> str:
    """The result of a program: it passed, perhaps without a part, or failed with its last words."""
    if status:
        return f"{FAILED}: {code([f'exit status {status}', *filter(str.strip, lines)][-1])}"
    missing = sum("not played" in line for line in lines)  # a server that is not installed
    return "passed" + f", {missing} not played" * (missing > 0)


def of_tests(status: int, cases: Sequence[ET.Element], lines: Sequence[str]) -> str:
    """The result of tests: they passed, or it names those that failed."""
    failed = [
        code("::".join([case.attrib["file"], *[case.attrib["name"]] * ("line" in case.attrib)]))
        for case in cases  # one without a line is a module that cannot be imported
        if case.find("failure") is not None or case.find("error") is not None
    ]
    if failed:
        more = [f"{len(failed) - NAMED} more"] * (len(failed) > NAMED)
        return f"{FAILED}: {', '.join([*failed[:NAMED], *more])}"
    return "no test is marked" if status == NOTHING_TO_PLAY else of_program(status, lines)


def code(text: str) -> str:
    """A text as code in a cell: short, and without the folders of this machine."""
    text = text.strip().replace(f"{ROOT}/", "").replace("`", "'")
    text = re.sub(r"(?<![\w:/.])/(?:[\w.@+-]+/)+", "…/", text)
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    return "`" + text.replace("|", "\\|") + "`"


# -- all of them ----------------------------------------------------------------------------------


def git(*words: str) -> str:
    """What git says; nothing where this is no clone."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def revision() -> str:
    """The commit, with a plus if any file but the record differs from it."""
    changed = git("status", "--porcelain", "--", ".", f":!{RECORD.relative_to(ROOT)}")
    return (git("rev-parse", "--short", "HEAD") or "-") + "+" * bool(changed)


@cache
def versions() -> str:
    """What it runs with."""
    with closing(EmbeddedNode()) as node:
        node.start()
        server = software(node)
    libraries = f"Django {version('Django')}, redis-py {version('redis')}"
    return f"Python {platform.python_version()}, {libraries}, {server}, Celery {version('celery')}"


def table(entries: Sequence[Entry]) -> str:
    """The entries as the table of the page."""
    rows = [f"| `{each.name}` | {each.plays} | {each.amount} |" for each in entries]
    return "\n".join(["| Entry | What it plays | N |", "| --- | --- | --- |", *rows, ""])


def night(entries: Sequence[Entry], seed: int, record: Path) -> int:
    """Play them, each also behind one that failed; the exit status."""
    failed = []
    for number, entry in enumerate(entries, start=1):
        print(f"[{number}/{len(entries)}] {entry.name}, seed {seed} ...", flush=True)
        began, commit = f"{datetime.now(UTC):%Y-%m-%d %H:%M}", revision()
        amount, result, seconds = play(entry, seed)
        used = str(seed) if any(SEED in word for word in entry.command) else "-"
        row = [began, commit, entry.name, amount, used, result, f"{seconds:.0f}", versions()]
        with record.open("a", encoding="utf-8") as file:
            file.write(HEADER * (file.tell() == 0) + f"| {' | '.join(row)} |\n")
        print(f"    {result}; {amount}, {seconds:.0f} s", flush=True)
        failed += [entry.name] * result.startswith(FAILED)
    again = f"; again: python -m tests.nightly --seed {seed} --only {' '.join(failed)}"
    print(f"{len(failed)} of {len(entries)} failed{again * bool(failed)}")
    return int(bool(failed))


def main(words: Sequence[str] | None = None, entries: Sequence[Entry] = ENTRIES) -> int:
    """Play the entries that are asked for, or print them."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.nightly", description=(__doc__ or "").partition("\n")[0]
    )
    names = [each.name for each in entries]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--record", type=Path, default=RECORD, metavar="FILE")
    parser.add_argument("--list", action="store_true", help="print the entries")
    parser.add_argument("--markdown", action="store_true", help="print them as the page has them")
    options = parser.parse_args(words)
    chosen = [each for each in entries if each.name in options.only]
    if not (options.list or options.markdown):
        return night(chosen, options.seed, options.record)
    lines = [f"{each.name:18} {each.amount:27} {each.plays}" for each in chosen]
    print(table(chosen) if options.markdown else "\n".join([*lines, ""]), end="")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the entry is ended, too
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted: the record has what had ended", file=sys.stderr)
        sys.exit(INTERRUPTED)
