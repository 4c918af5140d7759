"""Has a lock become slower? Two revisions in turns, each in its own process, on the same nodes.

Every scenario is reached through the public API, so that any two revisions can be compared. Each
turn gives a ratio, new by old. How uncertain their median is follows from the quartiles: ``(upper −
lower quartile) ÷ √turns``, times 1.57, is about half of its 95 % interval (the notch of McGill,
Tukey and Larsen's box plots). All that is of the ratios' logarithms: half as fast and twice as fast
are equally far from 1.

    ≤ 1.03    the whole interval is at most 1.03
    SLOWER    even an interval of nearly twice that width, factor 3, is above 1.03 as a whole: a run
              judges two dozen ratios, and one false alarm among them must be rare
    unclear   anything between, or fewer than five turns: more turns may tell
    FAILS     the newer one does not get locks that the older one gets: more than one of a hundred,
              or a scenario that only the older one has
"""

from __future__ import annotations

import io
import math
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import NamedTuple

from .clients import GRACE_SECONDS, block, fresh
from .measure import (
    Block,
    Reading,
    Result,
    Spread,
    each,
    failures,
    ordered,
    pair,
    processor,
    ratio,
    read,
    spread,
)
from .peers import PeerError
from .peers.environments import ROOT
from .peers.process import Process
from .stage import PROCESSORS, Effort, Stage

PACKAGE = "django_redlock"
COMMAND = [sys.executable, "-P", "-m", "dev.benchmarks.programs.ours"]
NOTE = """\
new ÷ old: median of the ratios of {turns} turns, and the quartiles in brackets. CPU: the \
median of the same for the client's processor time, to which a busy machine does less. The verdict \
is on the time."""
PATIENT = 2.0  # our NODE_TIMEOUT: what a busy machine makes late is slow, and no failure
SECONDS = 20.0  # for a block
WARM_UP = 2  # turns that are not kept
WAITERS = 8

LIMIT = 1.03
NOTCH, SURE = 1.57, 3.0
FEWEST = 5  # turns
FAILED = 0.01  # of the locks, beyond those that the older one does not get
SLOWER, FAILS, UNCLEAR, UNKNOWN = "SLOWER", "FAILS", "unclear", "not measured"
GOOD = f"≤ {LIMIT:g}"


# -- two copies of the package --------------------------------------------------------------------


class Revision(NamedTuple):
    """What is compared.

    Attributes:
        label: what the tables call it: a commit, never a path.
        home: the folder that has the package.
    """

    label: str
    home: Path


class NoSuchRevisionError(Exception):
    """Git does not know it, or it has no package."""


def working_tree(home: Path) -> Revision:
    """Copy the package as it is now, so that what is edited meanwhile is not measured."""
    _copy(ROOT, home)
    try:
        head = _git("describe", "--always", "--dirty= and changes", "--exclude=*").decode().strip()
    except NoSuchRevisionError:
        head = "unknown"
    return Revision(f"working tree, {head}", home)


def checkout(revision: str, home: Path) -> Revision:
    """Copy the package of a revision, or of a folder that has one."""
    if revision and (Path(revision) / PACKAGE).is_dir():
        _copy(Path(revision), home)
        return Revision("a folder", home)
    name = _git("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    archive = _git("archive", "--format=tar", name.decode().strip(), PACKAGE)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(home, filter="data")
    return Revision(name.decode()[:7], home)


def _copy(source: Path, home: Path) -> None:
    without = shutil.ignore_patterns("__pycache__", "*.py[co]")
    shutil.copytree(source / PACKAGE, home / PACKAGE, ignore=without)


def _git(*arguments: str) -> bytes:
    try:
        ended = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise NoSuchRevisionError("there is no git") from error
    if ended.returncode:
        raise NoSuchRevisionError(ended.stderr.decode().strip())
    return ended.stdout


# -- what is compared -----------------------------------------------------------------------------


class Scenario(NamedTuple):
    """What both revisions do.

    Attributes:
        label: what the tables call it.
        style: what the program calls it.
        pairs: the number of locks in a block.
        tasks: the number of tasks or threads that take them at once.
        reading: the reading of a block that is compared.
        together: whether it is measured unpinned only, for one processor is too few.
    """

    label: str
    style: str
    pairs: Callable[[Effort], int] = lambda effort: effort.pairs
    tasks: Callable[[Effort], int] = lambda _: 1
    reading: Reading = pair
    together: bool = False


def _at_once(label: str, style: str, count: int) -> Scenario:
    return Scenario(label, style, lambda effort: count * effort.pairs, lambda _: count, each)


def _most(effort: Effort) -> int:
    return effort.tasks[-1]


SCENARIOS = (
    Scenario("with", "with"),
    Scenario("async with", "async with"),
    Scenario(
        "50 tasks", "async with", lambda effort: 50 * (1 + effort.pairs // 5), lambda _: 50, each
    ),
    Scenario("many tasks", "async with", _most, _most, each),
    _at_once("8 threads", "threads", 8),
    _at_once("16 threads", "threads", 16),
    Scenario("8 waiters", "waiters", together=True),
    Scenario("extend", "extend"),
    Scenario("@redlock", "decorated"),
    Scenario("@single_flight", "@single_flight"),
)
Turns = dict[Scenario, tuple[list[Block], list[Block]]]


def compare(stage: Stage, old: Revision, new: Revision) -> Result:
    """Measure unpinned; pinned, too, where there is a processor for each side."""
    label = f"{new.label}, against {old.label}"
    result = Result(label, NOTE.format(turns=stage.effort.rounds))
    _add(result, "unpinned", _turns(stage, old, new, SCENARIOS, pinned=False))
    if len(PROCESSORS) > 1:
        alone = [scenario for scenario in SCENARIOS if not scenario.together]
        _add(result, "pinned", _turns(stage, old, new, alone, pinned=True))
    return result


def is_bad(result: Result) -> bool:
    """Whether the newer revision is slower or fails somewhere, or nothing could be compared."""
    said = {row["verdict"] for row in result.rows}
    return bool(said & {SLOWER, FAILS}) or said <= {UNKNOWN}


def _turns(
    stage: Stage, old: Revision, new: Revision, scenarios: Sequence[Scenario], *, pinned: bool
) -> Turns:
    """Short blocks of all scenarios, turn after turn, old and new one after the other."""
    turns: Turns = {scenario: ([], []) for scenario in scenarios}
    waiters = any(scenario.together for scenario in scenarios)
    with ExitStack() as stack:
        stack.enter_context(nullcontext() if pinned else stage.together())
        processes = [
            stack.enter_context(_start(stage, revision, prefix, waiters=waiters))
            for revision, prefix in ((old, "old:"), (new, "new:"))
        ]
        for turn in range(WARM_UP + stage.effort.rounds):
            for scenario in scenarios:
                for which in ordered((0, 1), turn):
                    if scenario.style not in {*processes[which].styles, "waiters"}:
                        continue
                    taken = _block(stage.effort, processes[which], scenario)
                    if turn >= WARM_UP:
                        turns[scenario][which].append(taken)
    return turns


def _start(stage: Stage, revision: Revision, prefix: str, *, waiters: bool) -> Process:
    """A process with this revision; under a prefix of its own, as it may store other things."""
    options = stage.options | {"KEY_PREFIX": prefix, "NODE_TIMEOUT": PATIENT}
    told = {"alias": stage.nodes.settings(**options), "home": str(revision.home)}
    env = {
        "PYTHONPATH": os.pathsep.join([str(revision.home), str(ROOT)]),
        "PYTHONHASHSEED": "0",  # or luck with the order of sets would be measured
    }
    crowds = {"threads": WAITERS} if waiters else {}
    return Process(revision.label, COMMAND, told | {"crowds": crowds}, env)


def _block(effort: Effort, process: Process, scenario: Scenario) -> Block:
    pairs = scenario.pairs(effort)
    if scenario.style != "waiters":
        return block(process, scenario.style, pairs, scenario.tasks(effort), SECONDS)
    turns = max(1, pairs // WAITERS)
    order = {"do": "crowd", "style": "threads", "name": fresh(), "processes": WAITERS, "hold": 0.0}
    try:
        said = process.ask(order | {"turns": turns, "seconds": None}, SECONDS + 3 * GRACE_SECONDS)
    except PeerError as error:
        return Block(None, None, SECONDS, 0.0, 0, turns * WAITERS, str(error))
    had, seconds = sum(map(len, said["turns"])), said["end"] - said["start"]
    turn = seconds / had * 1e6 if had else None  # of all by their number
    return Block(turn, turn, seconds, said["processor"], had, said["failed"], said["error"])


def _add(result: Result, how: str, turns: Turns) -> None:
    for scenario, (old, new) in turns.items():
        below, above = read(old, scenario.reading), read(new, scenario.reading)
        times, work = ratio(above, below), ratio(read(new, processor), read(old, processor))
        compared = sum(bool(one and other) for one, other in zip(above, below, strict=False))
        result.rows.append(
            {
                "": scenario.label,
                "how": how,
                "old, µs": _median(below),
                "new, µs": _median(above),
                "new ÷ old": times,
                "CPU": None if work is None else work.median,
                "verdict": FAILS if fails(old, new) else speed(times, compared),
            }
        )
        for which, blocks in (("old", old), ("new", new)):
            if any(taken.failed for taken in blocks):
                result.note += f"\nFailed, {how}, {scenario.label}, {which}: {failures(blocks)}."
        result.figure(f"{how}: {scenario.label}", times)
        result.figure(f"{how}: {scenario.label}, client's processor", work)


def _median(values: Sequence[float | None]) -> float | None:
    found = spread(values)
    return None if found is None else found.median


# -- verdicts -------------------------------------------------------------------------------------


def speed(times: Spread | None, turns: int) -> str:
    """The verdict on a ratio, new by old, that so many turns gave."""
    if times is None:
        return UNKNOWN
    if turns < FEWEST:
        return UNCLEAR
    noise = math.log(times.high / times.low) / math.sqrt(turns)
    middle, limit = math.log(times.median), math.log(LIMIT)
    if middle - SURE * noise > limit:
        return SLOWER
    return GOOD if middle + NOTCH * noise <= limit else UNCLEAR


def fails(old: Sequence[Block], new: Sequence[Block]) -> bool:
    """Whether the newer one does not get locks that the older one gets."""
    if not new:
        return bool(old)
    return bool(old) and _failed(new) > _failed(old) + FAILED


def _failed(blocks: Sequence[Block]) -> float:
    tried = sum(taken.failed + taken.pairs for taken in blocks)
    return sum(taken.failed for taken in blocks) / tried if tried else 0.0
