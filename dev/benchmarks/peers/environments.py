"""Where the peers are installed: one environment each, made once and kept.

They lie in the folder that REDLOCK_PEERS_CACHE names, or in `.cache/peers` of the project. Each
carries a stamp with the text of what it was made from, written last: an environment without the
right stamp is removed and made anew. One process makes an environment while others wait for it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from dev.tools import pythons

ROOT = Path(__file__).resolve().parents[3]
INSTALL_SECONDS = 300.0
STAMP = "made-from"

# Exact versions, the newest that go together (redlock-ng wants redis below 6). hiredis, because
# we read with it ourselves.
PYTHON_PEERS = {
    "redis": ("redis==8.1.0", "hiredis==3.5.0"),
    "redlock-py": ("redlock-py==1.0.8", "redis==8.1.0", "hiredis==3.5.0"),
    "redlock-ng": ("redlock-ng==2.0.4", "redis==5.3.1", "hiredis==3.5.0"),
    "pottery": ("pottery==3.0.1", "redis==8.1.0", "hiredis==3.5.0"),
    "python-redis-lock": ("python-redis-lock==4.0.1", "redis==8.1.0", "hiredis==3.5.0"),
    "django-redis": ("django-redis==7.0.0", "Django==5.2.19", "redis==8.1.0", "hiredis==3.5.0"),
    "fencekit": ("fencekit==0.6.1", "Django==5.2.19", "redis==8.1.0", "hiredis==3.5.0"),
    "celery-once": ("celery-once==3.0.1", "celery[redis]==5.7.0", "redis==8.1.0"),
    "celery-singleton": ("celery-singleton==0.3.1", "celery[redis]==5.7.0", "redis==8.1.0"),
    # drf-idempotency wants Django below 5.3. With what serves a site: a server and drivers.
    "drf-idempotency": (
        "drf-idempotency==1.0.0",
        "Django==5.2.19",
        "djangorestframework==3.18.3",
        "redis==8.1.0",
        "gunicorn==27.0.1",
        "psycopg[binary]==3.3.9",
        "PyMySQL==1.2.4",
    ),
    "django-idempotency-key": (
        "django-idempotency-key==1.3.0",
        "Django==5.2.19",
        "django-redis==7.0.0",
        "djangorestframework==3.18.3",
        "redis==8.1.0",
        "gunicorn==27.0.1",
        "psycopg[binary]==3.3.9",
        "PyMySQL==1.2.4",
    ),
    # What this package needs, with the event loop that it does not need.
    "uvloop": ("uvloop==0.23.0", "Django==5.2.19", "redis==8.1.0", "hiredis==3.5.0"),
}
# Both lines of node-redlock are in use: 4 is the one published as latest, 5 has promises.
NODE_PEERS = {
    "ioredis": "5.11.1",
    "redlock": "5.0.0-beta.2",
    "redlock-4": "npm:redlock@4.2.0",
}

_refused: dict[str, str] = {}  # what could not be made is not tried again by this process
_installing: set[subprocess.Popen[str]] = set()
_over = threading.Event()  # nothing is installed any more


class PeerUnavailable(Exception):  # noqa: N818 - a state of this machine, like LockTaken
    """A peer's environment cannot be made on this machine; the text says why."""


def python(peer: str, minor: tuple[int, int] | None = None) -> Path:
    """Return the interpreter of a peer's environment, which is made if needed.

    Args:
        minor: the version of Python, as (3, 13); None is that of this process.

    Raises:
        PeerUnavailable: it cannot be made, or this machine has no such Python.
    """
    pins, program, tag = PYTHON_PEERS[peer], Path(sys.executable), sys.implementation.cache_tag
    if minor is not None:
        found = pythons.found().get(minor)
        if found is None:
            raise PeerUnavailable(f"{peer}: no Python {minor[0]}.{minor[1]} here")
        program, tag = found[1], f"cpython-{minor[0]}{minor[1]}"
    # A folder per version of Python: two test runs may use the cache at once.
    home = _cache() / f"{peer}-{tag}"
    interpreter = home / "bin" / "python"

    def install() -> None:
        # This process's pip installs, and what is never imported is never compiled: a quarter of
        # the work that a pip in each environment has.
        _run(peer, [str(program), "-m", "venv", "--without-pip", str(home)])
        pip = [sys.executable, "-m", "pip", "--python", str(interpreter), "install", "-q"]
        _run(peer, [*pip, "--disable-pip-version-check", "--no-compile", *pins])

    _make(home, "\n".join(pins), interpreter, install)
    return interpreter


def node() -> Path | None:
    """Return a folder whose `node_modules` has redlock and ioredis; None without node and npm."""
    return node_modules("node", NODE_PEERS).parent if has_node() else None


def node_modules(name: str, dependencies: Mapping[str, str]) -> Path:
    """Return the `node_modules` of an environment that npm makes if needed.

    Args:
        name: of the environment's folder, and in the text of an error.
        dependencies: each package that it has, and its exact version.

    Raises:
        PeerUnavailable: it cannot be made.
    """
    home = _cache() / name
    modules = home / "node_modules"
    wanted = json.dumps({"private": True, "dependencies": dict(dependencies)}, indent=2)

    def install() -> None:
        home.mkdir()
        (home / "package.json").write_text(wanted)
        options = ["--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
        _run(name, ["npm", "install", "--prefix", str(home), *options])

    _make(home, wanted, modules / next(iter(dependencies)) / "package.json", install)
    return modules


def has_node() -> bool:
    """Whether this machine has node and npm."""
    return bool(shutil.which("node") and shutil.which("npm"))


def _cache() -> Path:
    named = os.environ.get("REDLOCK_PEERS_CACHE")
    return Path(named).resolve() if named else ROOT / ".cache" / "peers"


def _make(home: Path, wanted: str, proof: Path, install: Callable[[], None]) -> None:
    """Let ``home`` be what ``install`` makes of ``wanted``; ``proof`` is a file in it."""
    stamp = home / STAMP
    if home.name in _refused:
        raise PeerUnavailable(_refused[home.name])
    home.parent.mkdir(parents=True, exist_ok=True)
    with _alone(home.with_name(f"{home.name}.lock")):
        if stamp.is_file() and stamp.read_text() == wanted and proof.is_file():
            return
        shutil.rmtree(home, ignore_errors=True)
        try:
            install()
        except PeerUnavailable as error:
            _refused[home.name] = str(error)
            raise
        stamp.write_text(wanted)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Be the only process in the block; the system ends it for one that dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def abandon() -> None:
    """End what is being installed, and install nothing more in this process: it was interrupted."""
    _over.set()
    for process in tuple(_installing):
        _end(process)


def _run(peer: str, command: list[str]) -> None:
    pipe = subprocess.PIPE
    try:  # a group of its own: pip and npm start processes, which end with it
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, process_group=0)
    except OSError as error:
        raise PeerUnavailable(f"{peer}: {error}") from error
    _installing.add(process)
    try:
        if _over.is_set():
            _end(process)
        out, complaints = process.communicate(timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise PeerUnavailable(f"{peer}: {error}") from error
    finally:
        _end(process)
        _installing.discard(process)
    if process.returncode:
        said = (complaints or out).strip().splitlines()[-3:]
        raise PeerUnavailable(f"{peer}: {' | '.join(said) or f'exit {process.returncode}'}")


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
