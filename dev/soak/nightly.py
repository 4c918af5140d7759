"""Play what only many plays can show, one entry after the other, and keep a record of it.

    python -m dev.soak.nightly                              what is due, the oldest first
    python -m dev.soak.nightly --minutes 30                 a part: no entry begins later than that
    python -m dev.soak.nightly --only soak tests-faults --seed 417
    python -m dev.soak.nightly --all                        also what is not due
    python -m dev.soak.nightly --list                       each, its last play, why it is due

An entry is a command. It passes, fails, or is inconclusive: too little was played. The output of
one that did not pass is printed, and those behind it are played, too. It is due if it did not pass,
if a file that it tests has changed since, and after 14 days. The exit status is 1 if any failed,
3 if none failed and any was inconclusive, 2 when the arguments are wrong, and 130 when it was
interrupted; what had ended before that is in the record.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import platform
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import IO, Final, NamedTuple
from xml.etree import ElementTree as ET

from dev.soak import verdict
from dev.soak.__main__ import NEWEST, command
from django_redlock.testing import EmbeddedNode
from tests.support.servers import software

ROOT: Final = Path(__file__).resolve().parents[2]
RECORD: Final = ROOT / "dev/nightly-record.md"
HEADER: Final = """\
<!-- `make nightly` writes the row of each entry that it has played. -->

| Date (UTC) | Revision | Tested | Entry | N | Seed | Result | Seconds | Versions |
| --- | --- | --- | --- | --- | ---: | --- | ---: | --- |
"""
SEED, FOLDER = "{seed}", "{folder}"  # in a command: the night's seed, a folder that is removed
REPORT: Final = "junit.xml"
GRACE: Final = 30.0  # seconds to clean up, for an entry that is ended
NOTHING_TO_PLAY: Final = 5  # pytest's exit status
INTERRUPTED: Final = 130
PASSED, FAILED, INCONCLUSIVE = "passed", "FAILED", "inconclusive"
DATE: Final = "%Y-%m-%d %H:%M"
NEVER: Final = "never"  # in the place of the date
OLD: Final = timedelta(days=14)  # then an entry is due, whether a file has changed or not
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
        rooms: the folders of ROOMS that it tests, besides all that is in no room.
        others: more folders that it tests, of this repository.
    """

    name: str
    plays: str
    amount: str
    command: list[str]
    limit: float = 3600.0
    rooms: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


# Two workers: the load is not of our own making.
PYTEST = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal"]
PYTEST += ["-p", "randomly", f"--randomly-seed={SEED}"]


def marked(name: str, plays: str, *paths: str, rooms: str = "") -> Entry:
    """The tests that are `nightly`, below these paths of `tests/` and `dev/soak/`."""
    places = [ROOT / top / path for path in paths for top in ("tests", "dev/soak", "")]
    found = [str(each.relative_to(ROOT)) for each in places if each.is_file() or has_tests(each)]
    command = [*PYTEST, "-m", "nightly", *found]
    command += [f"--junitxml={FOLDER}/{REPORT}", "-o", "junit_family=xunit1"]  # it names the file
    amount = "the tests that are `nightly`"
    return Entry(f"tests-{name}", plays, amount, command, 7200.0, tuple(rooms.split()))


def has_tests(folder: Path) -> bool:
    """Tell whether pytest finds tests in a folder."""
    return next(folder.rglob("test_*.py"), None) is not None


def soak(name: str, plays: str, amount: str, words: str = "", rooms: str = "") -> Entry:
    """A soak of `make soak`, with arguments that make it shorter."""
    found = [*command(name), *words.split()]
    return Entry(f"soak-{name}", plays, amount, found, rooms=tuple(rooms.split()))


def program(name: str, plays: str, amount: str, words: str, rooms: str = "") -> Entry:
    """A module, and its arguments."""
    found = [sys.executable, "-m", *words.split()]
    return Entry(name, plays, amount, found, rooms=tuple(rooms.split()))


def on_newest(entry: Entry) -> Entry:
    """The entry on the newest Python, where there is an environment of it: Django 6 needs it."""
    if not Path(NEWEST).exists():
        return entry
    words = [NEWEST if word == sys.executable else word for word in entry.command]
    return entry._replace(command=words)


PACKAGE: Final = ROOT / "django_redlock"
# What is on top of locks and leases: a change of it is for the entries that say so.
ROOMS: Final = (
    *("celery", "fencing", "idempotency", "inspection", "management", "tasks", "views", "work"),
    *("admin.py", "forms.py", "health.py", "locale", "migrations", "otel.py", "static"),
    *("templates", "templatetags"),
)
PAGES: Final = "admin.py inspection locale management static templates templatetags"
MODELS: Final = ("core", "simulation", "dev/models")
TOP = sorted(path.name for path in ROOT.glob("tests/test_*.py"))
ENTRIES: Final = [
    marked("nodes", "Connections, scripts and late replies on real nodes.", "nodes"),
    marked("locks", "Locks, leases and their contracts.", "locks", "leases", "contracts"),
    marked("faults", "Storms, rolling restarts, interruptions, waiting beside deaths.", "faults"),
    marked("fencing", "Fenced rows on each database.", "fencing", rooms="fencing"),
    marked("celery", "Workers, pools and brokers that are killed.", "celery", rooms="celery work"),
    on_newest(
        marked(
            "tasks",
            "Django's own tasks, on the newest Python.",
            "tasks",
            "work",
            rooms="tasks work",
        )
    ),
    marked(
        *("views", "Double and repeated requests to real servers.", "views", "idempotency"),
        rooms="views idempotency",
    ),
    marked("django", "Commands, and pages in a browser.", "django", rooms=PAGES),
    marked("models", "Models and simulated worlds beyond the small.", *MODELS),
    marked(
        *("example", "The demo, and walks through its site in a browser.", "example"),
        rooms=f"views {PAGES}",
    ),
    marked("docs", "Examples of pages that take long.", "docs", rooms=" ".join(ROOMS)),
    marked("interop", "Other people's clients beside this one.", "interop"),
    marked("museum", "The cells of the museum.", "museum"),
    marked("tools", "The benchmark, the matrix of versions and other tools.", "tools"),
    marked(
        *("others", "The testing kit, and what is left.", "testing", "inspection", *TOP),
        rooms="inspection",
    ),
    program(
        *("soak", "Simulated worlds of all profiles.", "5,000 worlds"),
        f"dev.soak.simulation.worlds --worlds 5000 --seed {SEED} --state {FOLDER}/state",
    )._replace(others=("tests/simulation",)),
    soak(
        *("healing", "Releases while a renewal heals the lease.", "15,000 releases"),
        "--releases 15000",
    ),
    soak(
        *("busy", "Fresh processes beside busy loops.", "40 runs"),
        "--runs 40",
    ),
    soak(
        *("interrupts", "Interruptions at random moments.", "2,000 interruptions"),
        f"--plays 2000 --seed {SEED}",
    ),
    soak("once", "Work that is done once, by processes that are killed.", "1,000 names"),
    soak(
        *("crowd", "Fifty processes for the slots of one name.", "k of 1, 2, 5 and 32"),
        f"--strikes 12 --seed {SEED}",
    ),
    soak(
        *("revoke", "Leases that are taken away beside nodes that die.", "150 leases"),
        "--leases 150",
    ),
    soak(
        *("handles", "Leases handed over beside heals, revokes and deaths.", "two minutes"),
        f"--seconds 120 --seed {SEED}",
    ),
    soak(
        *("run", "Commands under `redlock_run`, each struck by a fault.", "40 commands"),
        "--plays 40",
        "management",
    ),
    soak(
        *("leader", "Leaders that are killed, stopped or paused.", "40 kills, 40 stops"),
        "--kills 40 --stops 40",
    ),
    soak(
        *("celery", "Messages through workers that are killed.", "2,000 messages"),
        f"--messages 2000 --keys 50 --seconds 30 --seed {SEED}",
        "celery work",
    ),
    soak(
        *("tasks", "Django's own tasks, by workers that are killed.", "2,000 tasks"),
        rooms="tasks work",
    ),
    soak(
        *("fencing", "Additions by processes that are killed.", "2,000 on each database"),
        f"--additions 2000 --counters 2000 --seed {SEED}",
        "fencing",
    ),
    soak(
        *("idempotency", "Clients that repeat requests.", "100 on each database"),
        f"--clients 100 --seed {SEED}",
        "idempotency",
    ),
    soak(
        *("views", "Double submits to real servers.", "100 on each server"),
        "--submits 100",
        "views",
    ),
    program(
        *("museum", "Locks that people copy, each broken by a fault.", "one play of some cells"),
        f"dev.museum --short --seed {SEED}",
    ),
    program("demo", "The five acts of the demo.", "one play", "example_project.demo --once"),
    program("bench", "The benchmark runs to its end.", "one rough run", "dev.benchmarks --quick"),
]


# -- what an entry tests --------------------------------------------------------------------------


def tested(entry: Entry) -> str:
    """Return a hash of the files that an entry tests: of the package, and its own."""
    found = hashlib.sha256(" ".join(entry.command[1:]).encode())
    for path in files(entry):
        found.update(f"\0{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:8]


def files(entry: Entry) -> list[Path]:
    """Return the files of the package but for the rooms of others, and those of the command.

    A word of the command may be a path, or a module, whose folder is meant.
    """
    rooms = {room for room in ROOMS if room not in entry.rooms}
    found = {path for path in below(PACKAGE) if path.relative_to(PACKAGE).parts[0] not in rooms}
    for word in [*entry.command, *entry.others]:
        path = ROOT / word.replace(".", "/")
        if word.startswith(("dev/", "tests/")):
            found.update(below(ROOT / word))
        elif path.is_dir():
            found.update(below(path))
        elif path.with_suffix(".py").is_file():
            found.update(below(path.parent))
    return sorted(found)


def below(path: Path) -> Iterator[Path]:
    """Yield the file, or all files below the folder but those that Python makes."""
    for each in [path, *path.rglob("*")]:
        if "__pycache__" not in each.parts and each.is_file():
            yield each


# -- the record -----------------------------------------------------------------------------------


class Row(NamedTuple):
    """What the record says of an entry: its last play."""

    date: str
    revision: str
    tested: str
    entry: str
    amount: str
    seed: str
    result: str
    seconds: str
    versions: str

    def __str__(self) -> str:
        return f"| {' | '.join(self)} |\n"


def rows(record: Path) -> dict[str, Row]:
    """Return the rows of a record by their entries."""
    lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| 2")]
    return {row.entry: row for row in (Row(*each) for each in cells)}


def write(record: Path, row: Row) -> None:
    """Put a row in the place of the one that the entry had; the file is whole at any time."""
    new = record.with_name(f"{record.name}.new")
    found = rows(record) | {row.entry: row}
    text = "".join(str(found[name]) for name in sorted(found))
    new.write_text(HEADER + text, encoding="utf-8")
    new.replace(record)


def why_due(entry: Entry, row: Row | None, now: datetime) -> str:
    """Return why an entry is to be played again; "" if it is not."""
    if row is None:
        return "never played"
    if not row.result.startswith(PASSED):
        return row.result.partition(":")[0]
    if row.tested != tested(entry):
        return "what it tests has changed"
    age = now - datetime.strptime(row.date, DATE).replace(tzinfo=UTC)
    return f"played {age.days} days ago" if age > OLD else ""


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
    if not result.startswith(PASSED):
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
    """The result of a program: it passed, perhaps without a part, or tells its last words."""
    if status == verdict.INCONCLUSIVE and lines and lines[-1].startswith(verdict.TOO_LITTLE):
        return f"{INCONCLUSIVE}: {code(lines[-1].removeprefix(verdict.TOO_LITTLE))}"
    if status:
        return f"{FAILED}: {code([f'exit status {status}', *filter(str.strip, lines)][-1])}"
    missing = sum("not played" in line for line in lines)  # a server that is not installed
    return PASSED + f", {missing} not played" * (missing > 0)


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
    if status == NOTHING_TO_PLAY:
        return f"{PASSED}: no test is marked"
    skips = [skip.get("message", "") for case in cases for skip in case.iter("skipped")]
    if few := [text for text in skips if text.startswith(verdict.TOO_LITTLE)]:
        return f"{INCONCLUSIVE}: {code(few[0].removeprefix(verdict.TOO_LITTLE))}"
    if cases and all(case.find("skipped") is not None for case in cases):
        return f"{INCONCLUSIVE}: no test could be played"
    return of_program(status, lines)


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
def versions(python: str = sys.executable) -> str:
    """What it runs with."""
    if python != sys.executable:
        told = "from dev.soak import nightly; print(nightly.versions())"
        return subprocess.check_output([python, "-c", told], cwd=ROOT, text=True).strip()
    with closing(EmbeddedNode()) as node:
        node.start()
        server = software(node)
    libraries = f"Django {version('Django')}, redis-py {version('redis')}"
    return f"Python {platform.python_version()}, {libraries}, {server}, Celery {version('celery')}"


def night(entries: Sequence[Entry], seed: int, record: Path, minutes: float) -> int:
    """Play them, each also behind one that failed, until the time is over; the exit status."""
    late, results = time.monotonic() + 60 * minutes, dict[str, str]()
    for number, entry in enumerate(entries, start=1):
        if time.monotonic() >= late:
            print(f"the time is over; {len(entries) - len(results)} entries are left")
            break
        print(f"[{number}/{len(entries)}] {entry.name}, seed {seed} ...", flush=True)
        began, commit, on = f"{datetime.now(UTC):{DATE}}", revision(), tested(entry)
        python = next((word for word in entry.command if word == NEWEST), sys.executable)
        amount, result, seconds = play(entry, seed)
        used = str(seed) if any(SEED in word for word in entry.command) else "-"
        told = (entry.name, amount, used, result, f"{seconds:.0f}", versions(python))
        write(record, Row(began, commit, on, *told))
        print(f"    {result}; {amount}, {seconds:.0f} s", flush=True)
        results[entry.name] = result
    failed, few = (
        [name for name, result in results.items() if result.startswith(what)]
        for what in (FAILED, INCONCLUSIVE)
    )
    again = f"; again: python -m dev.soak.nightly --seed {seed} --only {' '.join(failed + few)}"
    told_again = again * bool(failed or few)
    print(f"{len(failed)} of {len(results)} failed, {len(few)} inconclusive{told_again}")
    return verdict.FAILED if failed else verdict.INCONCLUSIVE if few else verdict.PASSED


def due(entries: Sequence[Entry], record: Path) -> dict[str, str]:
    """Return why each entry is due, or "", by its name; the oldest first."""
    played, now = rows(record), datetime.now(UTC)
    oldest = sorted(entries, key=lambda each: played[each.name].date if each.name in played else "")
    return {each.name: why_due(each, played.get(each.name), now) for each in oldest}


def main(words: Sequence[str] | None = None, entries: Sequence[Entry] = ENTRIES) -> int:
    """Play the entries that are asked for, or print them."""
    parser = argparse.ArgumentParser(
        prog="python -m dev.soak.nightly", description=(__doc__ or "").partition("\n")[0]
    )
    names = [each.name for each in entries]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help="due or not")
    parser.add_argument("--all", action="store_true", help="also what is not due")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no entry begins later")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--record", type=Path, default=RECORD, metavar="FILE")
    parser.add_argument("--list", action="store_true", help="print the entries")
    options = parser.parse_args(words)
    reasons, by_name = due(entries, options.record), {each.name: each for each in entries}
    if options.list:
        played = rows(options.record)
        for name, reason in reasons.items():
            date, commit, on, *_ = played.get(name) or (NEVER, "-", "-")
            print(f"{name:18} {date:16} {commit:9} {on:8} {reason and f'due: {reason}'}".rstrip())
            print(f"    {by_name[name].plays}")
        return 0
    chosen = [name for name in reasons if options.all or options.only or reasons[name]]
    wanted = [by_name[name] for name in chosen if name in (options.only or names)]
    return night(wanted, options.seed, options.record, options.minutes)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the entry is ended, too
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted: the record has what had ended", file=sys.stderr)
        sys.exit(INTERRUPTED)
