"""What a person asks for once, in a new process, of nodes to which it takes long to connect.

Connecting takes longer than any lock waits for it, by TLS, and no node is down.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import override_settings
from redis.connection import SSLConnection

from django_redlock import NodesUnavailable, conf, redlock
from django_redlock.core.commands import Survey
from django_redlock.core.reasons import ReasonCode
from django_redlock.health import RedlockNodes
from django_redlock.inspection.survey import survey
from django_redlock.management import UNKNOWN
from django_redlock.nodes import node
from django_redlock.nodes.address import TLSConnection, from_url
from django_redlock.nodes.exchange import HANDSHAKE, Exchange
from django_redlock.nodes.node import Node
from django_redlock.testing import EmbeddedNodes
from tests.support.looked_at import check, counted_votes, status
from tests.support.loops import unguarded
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

from .test_admin import browser, look
from .test_release_page import form_of

NODE_TIMEOUT: Final = 0.1
HASTY: Final = {"urgent": False}
SLOW: Final = 1.4  # seconds: longer than a lock waits for a connection, twice …
assert SLOW > 2 * HANDSHAKE * NODE_TIMEOUT


@pytest.fixture(scope="module")
def nodes() -> Iterator[EmbeddedNodes]:
    """Five nodes, without the guard."""
    with unguarded(5) as nodes:
        yield nodes


@pytest.fixture
def proxies(
    nodes: EmbeddedNodes, tls: tuple[ssl.SSLContext, Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Proxy]]:
    """The nodes by TLS, as the alias "default"; by "plain" without."""
    monkeypatch.setattr(node, "OPEN_TIMEOUT", 3600.0)  # … and no step of it fails on a busy machine
    context, crt = tls
    with ExitStack() as stack:
        found = [stack.enter_context(Proxy(each.port, context)) for each in nodes]
        urls = [f"rediss://127.0.0.1:{each.port}/0" for each in found]
        alike = {"NODE_TIMEOUT": NODE_TIMEOUT, "RESTART_GUARD": False}
        aliases = {
            "default": {"NODES": urls, "OPTIONS": {"ssl_ca_certs": str(crt)}, **alike},
            "plain": {"NODES": nodes.urls, **alike, "NODE_TIMEOUT": 10},
        }
        with override_settings(REDLOCK=aliases):
            yield found


@pytest.fixture
def slow(proxies: list[Proxy]) -> list[Proxy]:
    """The same, where it takes long to connect."""
    for each in proxies:
        each.slow_to_connect = SLOW
    return proxies


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> list[ssl.SSLContext]:
    """The contexts that redis-py makes."""
    made: list[ssl.SSLContext] = []
    make = ssl.create_default_context

    def noted(*args: Any, **options: Any) -> ssl.SSLContext:
        made.append(make(*args, **options))
        return made[-1]

    monkeypatch.setattr(ssl, "create_default_context", noted)
    monkeypatch.setattr("django_redlock.nodes.address._contexts", [])
    return made


# -- one context ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("proxies")
def test_the_nodes_of_an_alias_share_one_context(contexts):
    """Also a later process of connecting, and redlock_check, which has connections of its own."""
    assert status("--alias", "default")[0] == 0
    assert len(contexts) == 1
    conf.forget()
    assert status("--alias", "default")[0] == 0
    check("--alias", "default")
    assert len(contexts) == 1


@pytest.mark.usefixtures("proxies")
def test_a_context_for_each_node_is_noticed(contexts, monkeypatch):
    """The check above fails where redis-py makes them."""
    theirs = SSLConnection._wrap_socket_with_ssl
    monkeypatch.setattr(TLSConnection, "_wrap_socket_with_ssl", theirs)
    status("--alias", "default")
    assert len(contexts) >= 5


def test_a_file_that_was_replaced_is_read_again(proxies, contexts, tls, tmp_path):
    """A certificate that is renewed while the process runs; a wrong one is told."""
    mine = tmp_path / "ca.crt"
    mine.write_bytes(tls[1].read_bytes())
    url = f"rediss://127.0.0.1:{proxies[0].port}/0"
    setting = {"NODES": [url], "RESTART_GUARD": False, "NODE_TIMEOUT": 10}
    setting["OPTIONS"] = {"ssl_ca_certs": str(mine)}
    with override_settings(REDLOCK={"default": setting}):
        with redlock("name"):
            pass
        renewed = tmp_path / "renewed.crt"
        renewed.write_bytes(tls[1].read_bytes())
        renewed.replace(mine)
        conf.forget()
        with redlock("name"):
            pass
        assert len(contexts) == 2
        mine.write_text("no certificate")
        conf.forget()
        with pytest.raises(NodesUnavailable):
            redlock("name").acquire()
        mine.unlink()
        conf.forget()
        with pytest.raises(NodesUnavailable):
            redlock("name").acquire()


def test_other_options_have_another_context(contexts, tls):
    """Nodes that must prove less share nothing with those that must prove more."""
    made = from_url("rediss://127.0.0.1/0", options={"ssl_ca_certs": str(tls[1])})
    other = from_url("rediss://127.0.0.1/0", options={"ssl_cert_reqs": "none"})
    found = []
    for each in (made, other, made):
        connection = each.connection(1.0)
        assert isinstance(connection, TLSConnection)
        found.append(connection._context())
    assert found[0] is found[2]
    assert [each.verify_mode for each in found] == [
        *(ssl.CERT_REQUIRED, ssl.CERT_NONE, ssl.CERT_REQUIRED)
    ]


# -- patience -------------------------------------------------------------------------------------


def by_status() -> None:
    """Ask as somebody at a terminal."""
    code, said = status("--alias", "default")
    assert code == 0, said


def by_json() -> None:
    """Ask as a program."""
    found = json.loads(status("--alias", "default", "--json")[1])["aliases"]["default"]["nodes"]
    assert [each["voting"] for each in found] == [True] * 5


def by_prometheus() -> None:
    """Ask as a job of cron does."""
    code, said = status("--alias", "default", "--prometheus")
    up = re.findall(r'^redlock_node_up\{alias="default",.*\} (\d)$', said, re.MULTILINE)
    assert (code, up) == (0, ["1"] * 5), said


def by_survey() -> None:
    """Ask from Python."""
    assert survey(conf.backend("default"), limit=1).voting == 5


def by_health() -> None:
    """Ask as a monitor does."""
    RedlockNodes().run()


def by_release() -> None:
    """Look who would lose a lock."""
    call_command("redlock_release", "name", dry_run=True)


def by_task() -> None:
    """Look for a task that there is not."""
    with pytest.raises(CommandError, match=r"no-such-id.*, say 5 of 5 nodes") as error:
        call_command("redlock_release", task="no-such-id", yes=True)
    assert error.value.returncode == 1


def by_admin() -> None:
    """Look at the page of the locks."""
    page = look(browser("view_lock"))
    assert "all 5 nodes vote" in page or "(5 of 5 nodes vote" in page


def by_lock_page() -> None:
    """Look at the page of one lock; it has the form."""
    form_of(browser("view_lock", "release_lock"), "name")


FACES: Final[list[Callable[[], None]]] = [
    *(by_status, by_json, by_prometheus, by_survey, by_health),
    *(by_release, by_task, by_admin, by_lock_page),
]


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("ask", FACES)
def test_who_asks_once_waits_until_the_nodes_are_connected(ask):
    """Healthy nodes are healthy, although connecting takes longer than a lock waits for it."""
    with redlock.using("plain")("name"):
        ask()


@pytest.mark.slow
def test_a_survey_without_patience_is_noticed(slow, monkeypatch):
    """The checks above can fail: nobody but they is so patient."""
    for each in slow:
        each.slow_to_connect = 60.0  # no stall of this machine is so long
    monkeypatch.setattr(Survey, "patience", property(lambda _: 0.0, lambda *_: None))
    assert status("--alias", "default")[0] == 4
    conf.forget()
    with pytest.raises(CommandError) as error:
        call_command("redlock_release", "name", dry_run=True)
    assert error.value.returncode == UNKNOWN


@pytest.mark.slow
@pytest.mark.django_db
def test_one_node_that_is_slow_to_connect_is_not_called_down(proxies):
    """There is a majority without it, and a person wants to know about all."""
    proxies[3].slow_to_connect = SLOW
    assert counted_votes() == (5, 5, 5)


@pytest.mark.slow
def test_a_node_that_a_lock_has_not_waited_for_is_waited_for(proxies, monkeypatch):
    """It is still being connected; with an attempt of its own the survey sees when that is over."""
    proxies[3].slow_to_connect = SLOW
    with redlock("name") as lease:
        assert lease.fence
        assert conf.backend("default").group.states()[3].code == ReasonCode.CONNECTING
    assert status("--alias", "default")[0] == 0
    conf.forget()
    begin = Node.open
    with redlock("name"):
        monkeypatch.setattr(Node, "open", lambda *args, **how: begin(*args, **how | HASTY))
        assert status("--alias", "default")[0] == 3


@pytest.mark.django_db
def test_a_node_that_is_known_to_be_down_is_not_waited_for(proxies, monkeypatch):
    """A page that looks again and again costs no patience then."""
    proxies[1].cut()
    assert status("--alias", "default")[0] == 3
    group: Any = conf.backend("default").group
    eventually(lambda: group.nodes[1].down)  # it finds out
    waited: list[int] = []
    left = Exchange.handshake_left

    def noted(self: Exchange, place: int, *seconds: float) -> float:
        waited.append(place)
        return left(self, place, *seconds)

    monkeypatch.setattr(Exchange, "handshake_left", noted)
    assert "4 of 5 nodes vote" in look(browser("view_lock"))
    assert waited == []
    with monkeypatch.context() as broken:
        broken.setattr(Node, "down", property(lambda _: False))
        status("--alias", "default")
    assert set(waited) == {1}
