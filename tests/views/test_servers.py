"""Views on real servers of several kinds and processes: gunicorn, uvicorn, gevent."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.test import override_settings

from dev.soak.views import double_submits
from django_redlock import conf, redlock
from django_redlock.inspection import survey
from django_redlock.testing import EmbeddedNodes
from tests.docs.pages import ROOT, Block, blocks, reader
from tests.support.inherited import children, shared, to_nodes
from tests.support.waiting import eventually

from .shop.served import GUNICORN, THREADED, UVICORN, WORKERS, Shop, end, gunicorn, served

pytestmark = pytest.mark.slow


# -- double submits: the short form of ``make soak ARGS=views`` ------------------------------------


TWO = gunicorn("--workers=2")  # as many as a double submit needs
FEW = {  # a few double submits to each kind of server, one after the other
    "gunicorn": double_submits.Scene(TWO, *double_submits.FUNCTION, at_once=1),
    "gunicorn, tokens": double_submits.Scene(TWO, *double_submits.TOKENS, at_once=1),
    "gunicorn, threads": double_submits.Scene(THREADED, *double_submits.FUNCTION, at_once=1),
    "gunicorn, gevent": double_submits.Scene(
        gunicorn("--worker-class=gevent"), *double_submits.FUNCTION, at_once=1
    ),
    "uvicorn": double_submits.Scene(UVICORN, *double_submits.TASK, at_once=1),
}


@pytest.mark.parametrize("server", FEW)
def test_a_double_submit_makes_one_order(server, redlock_embedded, tmp_path):
    """Each makes one order and one refusal; two customers at once both order."""
    outcome = double_submits.perform(FEW[server], redlock_embedded, tmp_path, 3, 2)
    assert outcome.wrong == []
    assert outcome.figures["orders"] == 3


def test_duplicates_and_shared_names_are_noticed(redlock_embedded, tmp_path):
    """The check can fail: without the decorator, with a key for all, and where it is not off."""
    scene = FEW["gunicorn"]
    with served(
        scene.server, tmp_path, redlock_embedded.settings(**double_submits.PATIENTLY)
    ) as shop:
        bare = scene._replace(locked="/unlocked/", unlocked="/token-unlocked/")
        assert "made 6 orders" in double_submits.play(bare, shop, 3, 2).wrong[0]
        wrong = scene._replace(locked="/shared/", unlocked="/token/")
        told = double_submits.play(wrong, shop, 4, 2).wrong
    assert told[0].startswith("4 customers made 2 orders at the same time")
    assert told[2].endswith("had locks of one name, checkout")
    assert told[3].startswith("without the decorator, 2 double submits made 2 orders")


@pytest.mark.parametrize(
    ("server", "addresses"),
    [
        pytest.param(GUNICORN, ("/with/",), marks=pytest.mark.nightly),
        (UVICORN, ("/with/", "/awith/")),
    ],
    ids=["gunicorn", "uvicorn"],
)
def test_double_submits_to_real_servers(server, addresses, patient_nodes, tmp_path):
    """Of two requests that take one lock themselves, one orders and one is answered 409."""
    alias = patient_nodes.settings(**double_submits.PATIENTLY)
    with served(server, tmp_path, alias) as shop:
        for address in addresses:
            for customer in range(5):
                assert shop.double_submit(address, customer) == [201, 409]
        assert shop.orders() == 5 * len(addresses)


# -- requests that wait ----------------------------------------------------------------------------


def statuses_of_a_crowd(shop: Shop, address: str, home: Any) -> list[int]:
    """What three requests for one name are answered, of which one may wait."""
    name = address.rsplit("/", maxsplit=1)[-1]
    with ThreadPoolExecutor(3) as pool, ExitStack() as stack:
        stack.callback((home / f"leave-{name}").touch)
        asking = [pool.submit(shop.ask, "POST", address, Basket="a")]
        eventually(lambda: list(home.glob(f"entered-{name}-*")), within=60)
        asking += [pool.submit(shop.ask, "POST", address, Basket="a") for _ in range(2)]
        refused = eventually(lambda: [each for each in asking if each.done()], within=60)
        assert [each.result()[0] for each in refused] == [503]
        assert shop.ask("GET", "/enter/1")[0] == 204  # a thread is left for others
        stack.close()
        return sorted(each.result()[0] for each in asking)


@pytest.mark.parametrize(
    ("server", "addresses"),
    [
        (THREADED, ("/queue/sync",)),
        pytest.param(UVICORN, ("/aqueue/async",), marks=pytest.mark.nightly),
    ],
    ids=["threads", "uvicorn"],
)
def test_a_real_server_keeps_answering(server, addresses, patient_nodes, tmp_path):
    """While one request runs and one waits, one more is refused, and other pages are served."""
    alias = patient_nodes.settings(**double_submits.PATIENTLY, MAX_WAITING_REQUESTS=1)
    with served(server, tmp_path, alias) as shop:
        for address in addresses:
            assert statuses_of_a_crowd(shop, address, tmp_path) == [201, 201, 503]


# -- clients that leave in the middle of a stream --------------------------------------------------


TTL = 5.0  # seconds, for which a busy machine keeps nobody from renewing
SERVED = {"gunicorn": GUNICORN, "threads": THREADED, "uvicorn": UVICORN}
ITERATORS = {"iterator": "drip", "async-iterator": "adrip"}


def streams(*often: str) -> pytest.MarkDecorator:
    """Ask of each server and kind of iterator; all but these at night."""
    return pytest.mark.parametrize(
        ("server", "kind"),
        [
            pytest.param(
                server,
                kind,
                id=f"{name}-{of}",
                marks=() if f"{name}-{of}" in often else pytest.mark.nightly,
            )
            for name, server in SERVED.items()
            for of, kind in ITERATORS.items()
        ],
    )


def processes(home: Path, name: str = "*") -> set[str]:
    """The processes that have begun to stream under these names."""
    return {path.name.split("-")[2] for path in home.glob(f"entered-{name}-*")}


def begin(shop: Shop, home: Path, address: str, name: str) -> socket.socket:
    """Ask for a stream, and wait until the server reads it."""
    client = socket.create_connection(("127.0.0.1", shop.port), 60)
    head = f"POST /{address}/{name} HTTP/1.1\r\nHost: 127.0.0.1\r\nBasket: a\r\n"
    client.sendall(f"{head}Content-Length: 0\r\n\r\n".encode())
    eventually(lambda: processes(home, name), within=30, what=f"{name} is read")
    return client


@streams("gunicorn-iterator", "threads-iterator", "uvicorn-async-iterator")
def test_clients_that_leave_streams_leave_no_locks(server, kind, patient_nodes, tmp_path):
    """As many as the server takes at once: each name is free, and the same processes go on."""
    alias = patient_nodes.settings(NODE_TIMEOUT=1, TTL=TTL, MAX_TTL=60, RESTART_GUARD=False)
    with served(server, tmp_path, alias) as shop, override_settings(REDLOCK={"default": alias}):
        names = [f"n{number}" for number in range(WORKERS)]
        with ExitStack() as stack:
            for name in names:
                stack.enter_context(closing(begin(shop, tmp_path, kind, name)))
                assert redlock(f"{kind}:{name}").state().held
        before = processes(tmp_path)
        for name in names:
            (tmp_path / f"leave-{name}").touch()
        for name in names:
            lock = redlock(f"{kind}:{name}")
            eventually(lambda lock=lock: not lock.state().held, within=25)  # type: ignore[misc]
        for name in names:
            assert shop.ask("POST", f"/{kind}/{name}", Basket="a")[0] == 200
        assert shop.answers()
        assert processes(tmp_path) == before


@streams("uvicorn-async-iterator")
def test_a_stream_longer_than_the_ttl_is_locked(server, kind, patient_nodes, tmp_path):
    """An equal request is refused. Renewal goes on, also where its view ran in another loop."""
    alias = patient_nodes.settings(NODE_TIMEOUT=1, TTL=TTL, MAX_TTL=60, RESTART_GUARD=False)
    with (
        served(server, tmp_path, alias) as shop,
        override_settings(REDLOCK={"default": alias}),
        closing(begin(shop, tmp_path, kind, "long")),
    ):
        assert shop.ask("POST", f"/{kind}/long", Basket="a")[0] == 409
        began, first = time.monotonic(), redlock(f"{kind}:long").state()
        eventually(lambda: time.monotonic() > began + 1.5 * TTL, within=60, every=0.1)
        last = redlock(f"{kind}:long").state()
        assert (last.held, last.since, last.fence) == (True, first.since, first.fence)
        (tmp_path / "leave-long").touch()
        eventually(lambda: not redlock(f"{kind}:long").state().held, within=25)


# -- ``gunicorn --preload``: workers are forks of a master that has connections and a lease --------


LOCK = "held by the master"


SHORT_TTL = 4.0  # seconds: short, so that the master must renew while workers come and go


CUSTOMERS = 24


ONE_OF_TWO = {201: 1, 409: 1}


PRELOADED = gunicorn(f"--workers={WORKERS}", "--preload", app="tests.views.shop.preloaded")


@contextmanager
def preloaded(
    nodes: EmbeddedNodes,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    server: tuple[str, ...] = PRELOADED,
    ttl: float = SHORT_TTL,
    **more: str,
) -> Iterator[Shop]:
    """The shop, whose master holds the lock."""
    for key, value in {"PRELOADED_LOCK": LOCK, **more}.items():
        monkeypatch.setenv(key, value)
    alias = nodes.settings(NODE_TIMEOUT=5, MAX_TTL=60, RESTART_GUARD=False, TTL=ttl)
    with override_settings(REDLOCK={"default": alias}), served(server, home, alias) as shop:
        yield shop


def master_of(shop: Shop) -> int:
    """The process that holds the lock, once it has forked its workers."""
    assert shop.answers()
    master = int(redlock(LOCK).state().holder.rpartition(":")[2])
    eventually(lambda: len(children(master)) == WORKERS, within=30)
    return master


def test_workers_that_inherit_connections_and_a_lease(patient_nodes, tmp_path, monkeypatch):
    """One order for each double submit, and the master keeps its lease.

    Also while workers are killed and others forked: none renews, releases or disturbs it.
    """
    with preloaded(patient_nodes, tmp_path, monkeypatch) as shop:
        first, master = redlock(LOCK).state(), master_of(shop)
        workers = set(children(master))
        assert len(to_nodes(master, patient_nodes)) >= 5
        eventually(lambda: shared(master, patient_nodes) == 0, what="connections of their own")
        began = time.monotonic()
        for customer in range(CUSTOMERS):
            assert Counter(shop.double_submit("/locked/", customer)) == ONE_OF_TWO
            if customer % 8 == 4:
                os.kill(min(workers & set(children(master))), signal.SIGKILL)
                eventually(lambda: len(children(master)) == WORKERS, within=30)
        eventually(lambda: time.monotonic() > began + 2 * SHORT_TTL, within=4 * SHORT_TTL)
        assert shop.orders() == CUSTOMERS
        assert len(workers & set(children(master))) == 1
        last = redlock(LOCK).state()
        assert (last.held, last.holder, last.since) == (True, first.holder, first.since)
        assert last.fence == first.fence
        assert shared(master, patient_nodes) == 0


PATCHES_FIRST = "from gevent import monkey\n\nmonkey.patch_all()\n"


@pytest.mark.parametrize("config", ["", PATCHES_FIRST], ids=["late", "first"])
def test_a_preloading_server_of_greenlets(config, patient_nodes, tmp_path, monkeypatch):
    """A worker that patches after the import, or before, holds a lock, renews it, serves others."""
    (tmp_path / "gunicorn.conf.py").write_text(config)
    # A worker that has patched late may not end when it is told to, with locks or without.
    more = "--workers=2", "--worker-class=gevent", "--preload", "--graceful-timeout=1"
    server = gunicorn(
        *more, f"--config={tmp_path}/gunicorn.conf.py", app="tests.views.shop.preloaded"
    )
    monkeypatch.setenv("PRELOADED_LOCK", LOCK)
    if not config:
        monkeypatch.setenv("SHOP_BARE", "1")
    alias = patient_nodes.settings(NODE_TIMEOUT=5, MAX_TTL=60, RESTART_GUARD=False, TTL=SHORT_TTL)
    with (
        override_settings(REDLOCK={"default": alias}),
        served(server, tmp_path, alias) as shop,
        ThreadPoolExecutor(2) as clients,
        ExitStack() as stack,
    ):
        master = int(redlock(LOCK).state().holder.rpartition(":")[2])
        eventually(lambda: len(children(master)) == 2, within=60)
        one, other = children(master)
        os.kill(other, signal.SIGSTOP)  # so that all requests are for the one that holds the lock
        stack.callback(os.kill, other, signal.SIGCONT)
        stack.callback((tmp_path / "leave-a").touch)
        asking = [clients.submit(shop.ask, "POST", "/queue/a", Basket="a")]
        eventually(lambda: processes(tmp_path), within=60)
        assert processes(tmp_path) == {str(one)}
        asking.append(clients.submit(shop.ask, "POST", "/queue/a", Basket="a"))
        began, first = time.monotonic(), redlock("queue:a").state()
        eventually(lambda: time.monotonic() > began + 1.5 * SHORT_TTL, within=60, every=0.1)
        last = redlock("queue:a").state()
        assert (last.held, last.since, last.fence) == (True, first.since, first.fence)
        assert shop.ask("GET", "/enter/1")[0] == 204
        assert not any(each.done() for each in asking)
        stack.close()
        assert [each.result()[0] for each in asking] == [201, 201]


# -- a lock that is held for long, and a server that is stopped ------------------------------------


class Kind(NamedTuple):
    """A server of some kind.

    Attributes:
        server: the command.
        view: the one that holds a lock there.
        preloads: whether the master imports the project, takes a lock, and then forks.
    """

    server: tuple[str, ...]
    view: str = "hold"
    preloads: bool = False


def workers(*more: str) -> Kind:
    """Two workers of gunicorn, each of which imports the project."""
    return Kind(gunicorn("--workers=2", "--graceful-timeout=60", *more))


def forks(*more: str) -> Kind:
    """The same, which are forks of a master that has imported the project."""
    always = ("--workers=2", "--graceful-timeout=60", "--preload")
    app = "tests.views.shop.preloaded"
    return Kind(gunicorn(*always, *more, app=app), preloads=True)


GTHREAD = ("--worker-class=gthread", "--threads=2")
GEVENT = "--worker-class=gevent"
KINDS = {
    "sync": workers(),
    "sync, preload": forks(),
    "gthread": workers(*GTHREAD),
    "gthread, preload": forks(*GTHREAD),
    "gevent": workers(GEVENT),
    "gevent, preload": forks(GEVENT, "--config=python:tests.views.shop.patched"),
    "uvicorn": Kind(UVICORN, "ahold"),
}


@contextmanager
def holding(
    kind: Kind, nodes: EmbeddedNodes, home: Path, monkeypatch: pytest.MonkeyPatch, **more: Any
) -> Iterator[tuple[Shop, Future[tuple[int, str]]]]:
    """A shop with a request that holds a lock until it may leave, and what it will be answered."""
    with (
        preloaded(nodes, home, monkeypatch, kind.server, **more) as shop,
        ThreadPoolExecutor(1) as pool,
    ):
        try:
            request = pool.submit(shop.ask, "POST", f"/{kind.view}/it", Basket="a")
            eventually(lambda: request.done() or processes(home, "it"), within=60)
            yield shop, request
        finally:
            leave(home)


def leave(home: Path) -> None:
    """Let the request go on."""
    (home / "leave-it").touch()


@pytest.mark.parametrize("name", KINDS)
def test_a_lock_is_kept_past_its_ttl_and_released_by_a_server_that_is_stopped(
    name, patient_nodes, tmp_path, monkeypatch
):
    """A worker renews it, also one that a master with a lock of its own has forked.

    SIGTERM: the request goes on under its lock, is answered, and the name is free.
    """
    kind = KINDS[name]
    with holding(kind, patient_nodes, tmp_path, monkeypatch) as (shop, request):
        began, first = time.monotonic(), redlock("hold:it").state()
        assert first.held
        masters = redlock(LOCK).state()
        assert masters.held == kind.preloads

        def outlived() -> bool:
            assert redlock("hold:it").try_acquire() is None
            return time.monotonic() > began + 1.5 * SHORT_TTL

        eventually(outlived, within=60, every=0.1)
        last = redlock("hold:it").state()
        assert (last.since, last.fence) == (first.since, first.fence)
        assert redlock(LOCK).state().fence == masters.fence
        stop(shop)
        assert not request.done()
        assert redlock("hold:it").state().held
        leave(tmp_path)
        assert request.result()[0] == 201
        assert not redlock("hold:it").state().held
        assert shop.process.wait(60) in {0, -signal.SIGTERM}


def stop(shop: Shop) -> None:
    """Send SIGTERM; return when what is idle has ended: a worker, or a connection."""
    with closing(socket.create_connection(("127.0.0.1", shop.port), 60)) as client:
        if workers := children(shop.process.pid):
            client.close()
            shop.process.terminate()
            eventually(lambda: len(children(shop.process.pid)) < len(workers), within=40)
        else:
            client.sendall(b"GET /enter/1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert client.recv(1 << 10).startswith(b"HTTP/1.1 204")
            shop.process.terminate()
            assert client.recv(1) == b""


def test_a_worker_that_knows_nothing_of_the_fork_is_noticed(patient_nodes, tmp_path, monkeypatch):
    """The check can fail: it believes that its master's thread renews."""
    kind = KINDS["sync, preload"]
    with holding(kind, patient_nodes, tmp_path, monkeypatch, PRELOADED_NAIVE="1") as (_, request):
        began = time.monotonic()
        eventually(lambda: time.monotonic() > began + 1.5 * SHORT_TTL, within=60, every=0.1)
        leave(tmp_path)
        assert request.result()[0] != 201


# -- one leader, and a server that is stopped ------------------------------------------------------


LEADER = ROOT / "docs/how-to/limits-once-leader.md"
LATEST = 40.0  # seconds, less than the ttl: only a release lets another one lead
SITE = """\
import json, os
INSTALLED_APPS += ["shop", "django_redlock"]
REDLOCK = {"default": json.loads(os.environ["REDLOCK"])}
"""
# A step of the page's work ends when it was asked to stop, and may.
A_STEP = """\
import os, time
from pathlib import Path

HOME = Path(__file__).parents[1]


def note(what):
    file = os.open(HOME / "events", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{os.environ['SERVER']} {what}\\n".encode())
    os.close(file)


def print(_):
    note("begins")
    while redlock.leads("beat"):
        time.sleep(0.01)
    note("asked")
    while not (HOME / "leave").exists():
        time.sleep(0.01)
    note("ends")
"""
ASGI = "mysite.asgi:application"
LEADING = {  # the server, and the file of the page with which it begins and ends the block
    "gunicorn, sync": (gunicorn(app="mysite.wsgi"), "gunicorn.conf.py"),
    "gunicorn, gthread": (gunicorn(*GTHREAD, app="mysite.wsgi"), "gunicorn.conf.py"),
    "gunicorn, uvicorn": (
        gunicorn("--worker-class=uvicorn.workers.UvicornWorker", app=ASGI),
        "mysite/asgi.py",
    ),
    "uvicorn": (("uvicorn", ASGI, "--fd={socket}", "--log-level=warning"), "mysite/asgi.py"),
    "command": (("django", "beat"), "shop/management/commands/beat.py"),
}


class Site:
    """The example of the page "One leader", which several servers run."""

    def __init__(self, home: Path, kind: str, alias: object, stack: ExitStack) -> None:
        self.home = home
        self._server, file = LEADING[kind]
        self._stack = stack
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        stack.callback((home / "leave").touch)
        with reader(home, "mysite.settings") as someone:
            someone.begin("django-admin startproject mysite .", "python manage.py startapp shop")
            someone.write(Block("python", "mysite/settings.py", SITE))
            for block in blocks(LEADER):
                if block.file in (file, "shop/beat.py"):
                    someone.write(block._replace(text=block.text.replace("ttl=10", "ttl=60")))
            someone.write(Block("python", "shop/beat.py", A_STEP))
            self._environment = {**someone.environment, "REDLOCK": json.dumps(alias)}
            self._environment["PYTHONPATH"] += f"{os.pathsep}{ROOT}"

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """Start one more server."""
        socket = self._listener.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", *(word.format(socket=socket) for word in self._server)],
            cwd=self.home,
            env=self._environment | {"SERVER": name},
            pass_fds=[socket],
        )
        self._stack.callback(end, process)
        return process

    def events(self) -> list[str]:
        """What the servers have noted, in order."""
        file = self.home / "events"
        return file.read_text().splitlines() if file.exists() else []

    def wait_for(self, event: str) -> None:
        """Wait until a server has noted this."""
        eventually(lambda: event in self.events(), within=LATEST, what=event)


def hand_over(site: Site) -> list[str]:
    """Stop the server that leads in the middle of a step, while the next one waits in line."""
    first = site.start("first")
    site.wait_for("first begins")
    site.start("next")
    eventually(
        lambda: any(each.waited for each in survey(conf.backend("default")).locks), within=LATEST
    )
    first.terminate()
    site.wait_for("first asked")
    (site.home / "leave").touch()
    site.wait_for("next begins")
    assert first.wait(60) in {0, -signal.SIGTERM}
    return site.events()


@pytest.fixture
def alias(patient_nodes) -> Iterator[dict[str, object]]:
    """The alias of two servers, and of the test."""
    made = patient_nodes.settings(NODE_TIMEOUT=5, MAX_TTL=60, RESTART_GUARD=False)
    with override_settings(REDLOCK={"default": made}):
        yield made


@pytest.mark.parametrize("kind", LEADING)
def test_the_next_leader_begins_when_the_work_of_the_last_one_has_ended(kind, alias, tmp_path):
    """At a deployment, with the files of the page. SIGTERM: the step ends, and the name is free."""
    with ExitStack() as stack:
        said = hand_over(Site(tmp_path, kind, alias, stack))
    assert said[:4] == ["first begins", "first asked", "first ends", "next begins"]
