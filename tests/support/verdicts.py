"""A lint: what lets the load of a machine, or an earlier test, decide a verdict is refused.

It reads the tests and their helpers as text before any test runs:

- an assertion with an upper bound on a time that was measured: such a test belongs to
  `make nightly`, or counts events;
- a count of this process's threads, descriptors or objects, and a trace function: a worker of
  pytest-xdist has those of other tests, too, so such a test is marked `alone`;
- a sleep in a module of tests: it waits for a condition instead;
- a time of the package that a test sets to between 1 and 600 seconds: a slow machine may take as
  long, or not, so the test sets what is over at once, or an hour.

What is marked `nightly` or `alone` is free, with the helpers that nothing else in its module uses.
``EXCEPTIONS`` names everything else, each with its reason.

    python -m tests.support.verdicts [FILE ...]
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

ROOT: Final = Path(__file__).parents[2]
READ: Final = ("tests", "dev/models")
NIGHTLY: Final = "dev/soak/"  # all tests below it are nightly
FREE: Final = {"nightly", "alone"}
# Functions that tell a time, and names that mean a measured one.
CLOCKS: Final = {"monotonic", "perf_counter", "thread_time", "process_time", "boottime"}
TIMES: Final = {"took", "elapsed", "waited"}
COUNTS: Final = {
    *("threading.enumerate", "threading.active_count", "gc.get_objects"),
    *("sys.settrace", "sys.setprofile", "sys._current_frames"),
}
SETTERS: Final = {"setattr", "patch", "object"}  # of pytest and unittest.mock
OVER_AT_ONCE, NEVER_OVER = 1.0, 600.0  # seconds
# The constants of the package that are seconds: numbers with a point.
SECONDS: Final = re.compile(
    r"^([A-Z_]+)(?:, [A-Z_]+)*(?:: Final)? = \(?[0-9_]+\.[0-9]", re.MULTILINE
)
# File, or file::function, and why.
EXCEPTIONS: Final = {
    (
        "tests/nodes/test_undo_queue.py::test_a_full_queue_drops_the_oldest_and_says_so_once"
    ): "no seconds",
    "tests/support/loops.py::open_files": "only tests that are alone use it",
    "tests/support/loops.py::threads": "only tests that are alone use it",
    "tests/support/verdicts.py": "says what it looks for",
    "tests/support/waiting.py::waiting_for_silent_nodes": "a request too many waits for a minute",
}

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Finding(NamedTuple):
    """A place that the lint refuses.

    Attributes:
        where: the file, relative to the repository.
        function: the outermost one around it, or "".
    """

    where: str
    function: str
    line: int
    what: str

    def __str__(self) -> str:
        """Return the place as an editor opens it."""
        return f"{self.where}:{self.line} {self.function}: {self.what}"


def refused(files: Iterable[Path] | None = None) -> list[Finding]:
    """Return what is refused in these files, by default in all tests but the nightly ones."""
    found = []
    all_of_them = (file for top in READ for file in sorted((ROOT / top).rglob("*.py")))
    for file in all_of_them if files is None else files:
        where = file.resolve().relative_to(ROOT).as_posix()
        if where not in EXCEPTIONS:
            found += [
                each
                for each in in_source(where, file.read_text(encoding="utf-8"))
                if f"{where}::{each.function}" not in EXCEPTIONS
            ]
    return found


def in_source(where: str, source: str) -> Iterator[Finding]:
    """Yield what is refused in the source of a module."""
    module = ast.parse(source)
    is_test = Path(where).name.startswith("test_")
    free = functions_with(FREE, module)
    if free is None:
        return
    for top in module.body:
        name = getattr(top, "name", "")
        if name not in free:
            for line, what in {*_refused(top, sleeps=is_test)}:
                yield Finding(where, name, line, what)


def _refused(top: ast.stmt, *, sleeps: bool) -> Iterator[tuple[int, str]]:
    times = TIMES | {
        target.id
        for each in ast.walk(top)
        if isinstance(each, ast.Assign) and _tells_time(each.value, set())
        for target in each.targets
        if isinstance(target, ast.Name)
    }
    for each in ast.walk(top):
        if isinstance(each, ast.Attribute) and ast.unparse(each) in COUNTS:
            yield each.lineno, f"{ast.unparse(each)} sees other tests, too: mark it alone"
        elif isinstance(each, ast.Constant) and "/proc/self" in str(each.value):
            yield each.lineno, "/proc/self has what other tests have, too: mark it alone"
        elif sleeps and isinstance(each, ast.Call) and ast.unparse(each.func) == "time.sleep":
            yield each.lineno, "a sleep: wait for a condition"
        elif isinstance(each, ast.Call) and (name := _clock_set_by(each)):
            yield each.lineno, f"{name} may be over, or not: set what is over at once, or an hour"
        elif isinstance(each, ast.Assert):
            for compared in (one for one in ast.walk(each.test) if isinstance(one, ast.Compare)):
                if any(_tells_time(smaller, times) for smaller in _smaller(compared)):
                    yield each.lineno, "an upper bound on a measured time: count events, or nightly"


@functools.cache
def _clocks_of_the_package() -> set[str]:
    files = (ROOT / "django_redlock").rglob("*.py")
    return {name for file in files for name in SECONDS.findall(file.read_text(encoding="utf-8"))}


def _clock_set_by(call: ast.Call) -> str:
    """Return the name of the package's clock that a test sets to what load may decide, or ""."""
    called = getattr(call.func, "attr", None) or getattr(call.func, "id", None)
    if called not in SETTERS or len(call.args) < 2:
        return ""
    target, value = call.args[-2:]
    name = target.value if isinstance(target, ast.Constant) else ""
    name = str(name).rpartition(".")[2]
    numbers = value.elts if isinstance(value, ast.Tuple) else [value]
    times = [one.value for one in numbers if isinstance(one, ast.Constant)]
    decided = any(
        isinstance(one, int | float) and OVER_AT_ONCE <= one < NEVER_OVER for one in times
    )
    return name if decided and name in _clocks_of_the_package() else ""


def _smaller(compared: ast.Compare) -> Iterator[ast.expr]:
    """Yield the sides of a comparison that must be less than another one."""
    sides = [compared.left, *compared.comparators]
    for operator, left, right in zip(compared.ops, sides, sides[1:], strict=False):
        if isinstance(operator, ast.Lt | ast.LtE):
            yield left
        elif isinstance(operator, ast.Gt | ast.GtE):
            yield right


def _tells_time(node: ast.expr, times: set[str]) -> bool:
    return any(
        (isinstance(each, ast.Name) and each.id in times)
        or (isinstance(each, ast.Call) and ast.unparse(each.func).rpartition(".")[2] in CLOCKS)
        for each in ast.walk(node)
    )


@functools.cache
def nightly_in(file: str) -> set[str] | None:
    """Return the functions of a file that `make nightly` alone plays; None: all of them."""
    if file.startswith(NIGHTLY):
        return None
    return functions_with({"nightly"}, ast.parse((ROOT / file).read_text(encoding="utf-8")))


def functions_with(marks: set[str], module: ast.Module) -> set[str] | None:
    """Return the functions of a module with one of these marks, and those that only these use.

    None: the module has the mark. That of a parameter does not count.
    """
    assigned = [each for each in module.body if isinstance(each, ast.Assign)]
    if any(
        _has(marks, each.value) for each in assigned if ast.unparse(each.targets[0]) == "pytestmark"
    ):
        return None
    tops = {each.name: each for each in module.body if isinstance(each, Function)}
    uses = {name: _names(top) & {*tops} - {name} for name, top in tops.items()}
    found = {
        name for name, top in tops.items() if any(_has(marks, each) for each in top.decorator_list)
    }
    while True:
        users = {name: {by for by in tops if name in uses[by]} for name in tops}
        more = {
            name
            for name in {*tops} - found
            if not name.startswith(("test_", "Test")) and users[name] and users[name] <= found
        }
        if not more:
            return found
        found |= more


def _names(top: ast.AST) -> set[str]:
    names = {each.id for each in ast.walk(top) if isinstance(each, ast.Name)}
    return names | {each.arg for each in ast.walk(top) if isinstance(each, ast.arg)}


def _has(marks: set[str], mark: ast.expr) -> bool:
    """Tell whether this is one of the marks, or a list with one."""
    listed = mark.elts if isinstance(mark, ast.List | ast.Tuple) else [mark]
    called = [each.func if isinstance(each, ast.Call) else each for each in listed]
    return any(isinstance(each, ast.Attribute) and each.attr in marks for each in called)


if __name__ == "__main__":
    lines = refused([Path(each) for each in sys.argv[1:]] or None)
    print(*lines, sep="\n")
    sys.exit(bool(lines))
