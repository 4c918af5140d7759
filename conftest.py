"""For all tests: Ctrl-C as of a terminal, and no lease. For many: patient nodes; for some: TLS."""

from __future__ import annotations

import faulthandler
import gc
import os
import shutil
import signal
import ssl
import subprocess
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from django.utils import translation

from django_redlock.leases import context
from django_redlock.leases.renewal import watchdog
from django_redlock.nodes.background import end_all
from django_redlock.testing import EmbeddedNodes
from django_redlock.testing.plugin import lent
from django_redlock.views import lock as views_lock
from tests.support import verdicts
from tests.support.databases import Settings, database, why_not
from tests.support.pages import axe, chromium
from tests.support.pages.auditor import Auditor, open_auditor
from tests.support.waiting import PATIENTLY

PLUGINS = "replays", "own_process", "promises"
pytest_plugins = [f"tests.support.{each}" for each in PLUGINS]

HERE = Path(__file__).parent
# What is not quick by its folder; docs, example and tools do not test the package.
MARKS = {
    "dev/models": pytest.mark.slow,
    "dev/soak": pytest.mark.nightly,
    **{f"tests/{each}": pytest.mark.tools for each in ("docs", "example", "tools")},
}
# Modules with tests of ten seconds and more.
LONG = {
    "dev/models/test_revoke.py",
    *("tests/celery/test_rabbitmq.py", "tests/celery/test_workers.py", "tests/docs/test_docs.py"),
    *("tests/faults/test_handles.py", "tests/leases/test_memory.py"),
    *("tests/nodes/test_node_clocks.py", "tests/nodes/test_two_drivers.py"),
    "tests/views/test_servers.py",
}
QUIET = 30  # seconds for the end of what a test has begun, such as a handshake with a hung node


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse tests whose verdict the load of a machine, or an earlier test, could decide."""
    from tests.support.own_process import PLAYED  # a plugin: imported before, it is not rewritten

    beside_others = hasattr(session.config, "workerinput") or PLAYED in os.environ
    if not beside_others and (found := verdicts.refused()):
        raise pytest.UsageError("\n".join(map(str, found)))


def pytest_configure() -> None:
    """A suite that a shell starts in the background ignores SIGINT, as all would that it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """Mark tests by their folder; long tests come first.

    pytest-xdist gives each worker an equal part of this list, one after the other. A worker that
    came to a long test at its end would keep the others waiting.
    """
    for item in items:
        if mark := MARKS.get("/".join(item.path.relative_to(HERE).parts[:2])):
            item.add_marker(mark)
    yield  # some are left out, and the others mixed
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    each = len(items) // workers
    long: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        (long if item.path.relative_to(HERE).as_posix() in LONG else others).append(item)
    # Those of one module are busy with the same, and come one after another.
    seed = config.getoption("randomly_seed", "")  # the same in all workers
    long.sort(key=lambda item: zlib.crc32(f"{seed} {item.nodeid}".encode()))
    items.clear()
    for worker in range(workers):
        first = long[worker::workers]
        rest = max(0, each - len(first))
        items += [*first, *others[:rest]]
        del others[:rest]
    items += others


def pytest_collection_finish() -> None:
    """What is there before the first test stays: a collection in a test looks at what came since.

    It takes a third of a second else, and hundreds of tests ask for one.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """At the end of a test the package does nothing in the background: what is left is its own.

    Another plugin asks for ``monkeypatch`` earlier, which thus ends later: no clock of a test may
    judge this.
    """
    yield
    monkeypatch.undo()
    left = end_all(QUIET)
    if left:
        faulthandler.dump_traceback()  # what they do
    assert not left, f"{QUIET} s after the test there are still threads that {', '.join(left)}"


@pytest.fixture(autouse=True)
def no_leases() -> None:
    """A test begins without a lease: one of an earlier test may await the garbage collector.

    Nor is it told of one that was torn there, which the log tells at its deadline.
    """
    context._stack.set(())
    for lease in watchdog.schedule.leases():
        if lease.torn:
            lease.tell_once()


@pytest.fixture(autouse=True)
def no_language() -> Iterator[None]:
    """Django leaves the language of a thread's last request active: it is that request's alone."""
    yield
    translation.deactivate()


@pytest.fixture(autouse=True)
def no_views() -> Iterator[None]:
    """The system checks know no view of an earlier test that awaits the garbage collector."""
    made = views_lock.view_locks
    before = made.copy()
    yield
    made.intersection_update(before)


@pytest.fixture
def patient_nodes(redlock_embedded: EmbeddedNodes) -> Iterator[EmbeddedNodes]:
    """The nodes of `redlock_nodes`, for tests of something else than time, on whatever machine.

    A node has ten seconds for an answer and a lease lasts for a minute, so that no stall makes a
    node silent or ends a lease. Without the restart guard nobody waits until the nodes are old.
    """
    with lent(redlock_embedded, **PATIENTLY):
        yield redlock_embedded


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of the usual ttl, 30 s, are renewed every 0.1 s: no stall of this machine ends one."""
    monkeypatch.setattr("django_redlock.leases.lease.RENEWALS", 300)
    monkeypatch.setattr("django_redlock.leases.lease.TRIES", 300)


@pytest.fixture(scope="session")
def databases() -> Iterator[Callable[[str], Settings]]:
    """Start a database of a kind once per session; return its entry for ``DATABASES``."""
    with ExitStack() as stack:
        started: dict[str, Settings] = {}

        def start(kind: str) -> Settings:
            if why_not(kind):
                pytest.skip(f"{kind} cannot be started: {why_not(kind)}")
            if kind not in started:
                started[kind] = stack.enter_context(database(kind))
            return started[kind]

        yield start


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, Path]:
    """What a node needs to speak TLS at 127.0.0.1, and the certificate that vouches for it."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    crt, key = folder / "node.crt", folder / "node.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    command += ["-subj", "/CN=node", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(key), "-out", str(crt)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(crt, key)
    return context, crt


@pytest.fixture(scope="session")
def auditor() -> Iterator[Auditor]:
    """A browser that looks at pages for what keeps people from reading them; one a session."""
    chromium.need("the pages", chromium.why_not() or axe.why_not())
    with open_auditor() as found:
        yield found
