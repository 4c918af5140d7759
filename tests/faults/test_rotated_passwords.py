"""Passwords that change on the nodes while locks are held."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import pytest
from django.test import override_settings
from redis.credentials import CredentialProvider

from django_redlock import NodesUnavailable, conf, redlock
from django_redlock.core.reasons import ReasonCode
from django_redlock.leases.lease import Lease
from django_redlock.testing import EmbeddedNode, EmbeddedNodes
from tests.support.looked_at import check, status
from tests.support.loops import ENDED, idle, shows
from tests.support.waiting import eventually

OLD, NEW = "0ld-s3cr3t", "n3w-s3cr3t"
ADMIN = "4dmin-s3cr3t"
REFUSED = "login_refused"
EVERYTHING = ("on", "~*", "&*", "+@all")  # the rules of a user who may do everything


class Vault(CredentialProvider):
    """What OPTIONS may name: the credentials are asked for at each connection."""

    def __init__(self, user: str) -> None:
        self.user, self.password = user, OLD

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Those of now."""
        return (self.user, self.password) if self.user else (self.password,)


class Rotation(NamedTuple):
    """Nodes that ask for a password, and who gives it.

    Attributes:
        user: of an ACL, or "" for the one of requirepass.
    """

    nodes: EmbeddedNodes
    user: str
    vault: Vault

    def admin(self, node: EmbeddedNode) -> Any:
        """A client that no password of these concerns."""
        return closing(node.client(username="admin", password=ADMIN, decode_responses=True))

    def rotate(self, *places: int, to: str = NEW) -> None:
        """Let these nodes ask for another password from now on."""
        for place in places:
            with self.admin(self.nodes[place]) as admin:
                if self.user:
                    admin.execute_command("ACL SETUSER", self.user, "resetpass", f">{to}")
                else:
                    admin.config_set("requirepass", to)

    def hang_up(self, *places: int) -> None:
        """Let these nodes close their connections, as a proxy or an operator may."""
        for place in places:
            with self.admin(self.nodes[place]) as admin:
                admin.execute_command("CLIENT KILL TYPE normal SKIPME yes")
        group: Any = conf.backend("default").group
        eventually(lambda: all(shows(group.nodes[place], ENDED) for place in places))

    def holders(self, name: str) -> list[int]:
        """The nodes that have the lock."""
        found = []
        for place, node in enumerate(self.nodes):
            with self.admin(node) as admin:
                if admin.exists(f"redlock:lock:{name}"):
                    found.append(place)
        return found


@pytest.fixture(scope="module")
def three() -> Iterator[EmbeddedNodes]:
    """Three nodes with an administrator."""
    with EmbeddedNodes(3) as nodes:
        for node in nodes:
            with closing(node.client()) as client:
                client.execute_command("ACL SETUSER", "admin", f">{ADMIN}", *EVERYTHING)
        yield nodes


@contextmanager
def in_force(
    nodes: EmbeddedNodes, user: str, password: str | None, **options: Any
) -> Iterator[None]:
    """The default alias, with a password in its settings or none."""
    places: list[dict[str, str | None]] = [{"URL": url} for url in nodes.urls]
    if password is not None:
        places = [each | {"USERNAME": user or None, "PASSWORD": password} for each in places]
    alias = {"NODES": places, "NODE_TIMEOUT": 20, "MAX_TTL": 60, "RESTART_GUARD": False}
    with override_settings(REDLOCK={"default": alias | {"OPTIONS": options}}):
        yield


@pytest.fixture(params=["", "locker"], ids=["requirepass", "acl"])
def rotation(three: EmbeddedNodes, request: pytest.FixtureRequest) -> Iterator[Rotation]:
    """The nodes with the old password, which the provider of credentials gives."""
    user = request.param
    found = Rotation(three, user, Vault(user))
    for node in three:
        with found.admin(node) as admin:
            admin.flushall()
            if user:
                admin.execute_command("ACL SETUSER", user, *EVERYTHING)
    found.rotate(0, 1, 2, to=OLD)
    with in_force(three, user, None, credential_provider=found.vault):
        connect()
        yield found
        conf.forget()


def connect() -> None:
    """Have a connection to every node."""

    def connected() -> bool:
        with suppress(NodesUnavailable), redlock("warm"):
            pass
        return all(state.voting for state in conf.backend("default").group.states())

    eventually(connected)


def told() -> list[str]:
    """The code of each node by ``redlock_status``."""
    found: Any = json.loads(status("--json")[1])["aliases"]["default"]
    return [node["code"] for node in found["nodes"]]


def found() -> list[list[str]]:
    """The codes of the errors at each node by ``redlock_check``."""
    document: Any = json.loads(check("--json")[1])["aliases"]["default"]
    return [
        [each["code"] for each in node["findings"] if each["level"] == "error"]
        for node in document["nodes"]
    ]


def by_a_thread(name: str) -> Lease:
    """Take a lock by blocking."""
    return redlock(name).acquire()


def by_a_task(name: str) -> Lease:
    """Take a lock in a new event loop, which has connections of its own."""

    async def take() -> Lease:
        return await redlock(name).aacquire()

    return asyncio.run(take())


def had(take: Callable[[str], Lease]) -> bool:
    """Whether a lock can be had."""
    with suppress(NodesUnavailable):
        take("other").release()
        return True
    return False


@pytest.mark.slow
def test_connections_that_are_open_go_on(rotation):
    """A password that changes on all nodes at once ends nothing: who has logged in has."""
    with redlock("held") as lease:
        rotation.rotate(0, 1, 2)
        lease.extend()
        with redlock("other"):
            assert rotation.holders("other") == [0, 1, 2]
        assert told() == ["", "", ""]
        assert found() == [[REFUSED]] * 3
    assert rotation.holders("held") == []


@pytest.mark.slow
@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("take", [by_a_thread, by_a_task])
def test_a_node_is_named_at_once_and_the_others_go_on(rotation, take, caplog):
    """One node after the other: what is held stays held, and the node is well again by itself."""
    caplog.set_level(logging.DEBUG)
    with redlock("held") as lease:
        for place in range(3):
            rotation.rotate(place)
            rotation.hang_up(place)
            other = take("other")
            assert other.grant.votes[place].code == REFUSED
            assert rotation.holders("other") == [each for each in range(3) if each != place]
            other.release()
            assert told()[place] == REFUSED
            assert found()[place] == [REFUSED]
            lease.extend()
            rotation.rotate(place, to=OLD)
            eventually(lambda: had(take) and told() == ["", "", ""])
        assert not lease.lost
    assert "s3cr3t" not in caplog.text


@pytest.mark.slow
@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("take", [by_a_thread, by_a_task])
def test_a_majority_that_refuses_us_is_told_and_loses_no_lease(rotation, take, caplog):
    """Without a login there is no lock; with the new password a lease that has time is held."""
    caplog.set_level(logging.DEBUG)
    with redlock("held") as lease:
        rotation.rotate(0, 1, 2)
        rotation.hang_up(0, 1, 2)
        with pytest.raises(NodesUnavailable) as error:
            take("other")
        assert [vote.code for vote in error.value.votes] == [REFUSED] * 3
        with pytest.raises(NodesUnavailable):
            lease.extend()
        code, shown = status()
        assert code == 4
        examined = check("--json")[1]
        assert [told(), found()] == [[REFUSED] * 3, [[REFUSED]] * 3]
        for text in (str(error.value), examined):
            assert ReasonCode.LOGIN_REFUSED.sentence in text
        assert rotation.holders("held") == [0, 1, 2]
        assert not lease.lost
        rotation.vault.password = NEW
        eventually(partial(extended, lease))
        eventually(lambda: had(take) and told() == ["", "", ""])
    assert rotation.holders("held") == []
    assert "s3cr3t" not in f"{error.value} {error.value!r} {error.value.votes!r} {caplog.text}"
    assert "s3cr3t" not in f"{shown} {examined} {conf.backend('default').group.states()!r}"


def extended(lease: Lease) -> bool:
    """Whether the nodes can be asked to prolong a lease."""
    with suppress(NodesUnavailable):
        lease.extend()
        return True
    return False


@pytest.mark.slow
def test_a_name_released_without_a_login_is_free_with_the_new_password(rotation):
    """What the nodes could not be asked to free is free as soon as we may log in."""
    lease = redlock("held").acquire()
    rotation.rotate(0, 1, 2)
    rotation.hang_up(0, 1, 2)
    lease.release()
    assert rotation.holders("held") == [0, 1, 2]
    rotation.vault.password = NEW
    eventually(lambda: rotation.holders("held") == [])


@pytest.mark.slow
def test_who_is_refused_is_told_so_although_others_are_connected(rotation):
    """A connection of another caller makes no secret of why a new one could not be had."""
    group: Any = conf.backend("default").group
    node, now = group.nodes[0], time.monotonic()
    idle(node)
    connection = node.take(now)
    rotation.rotate(0)
    attempt = node.open(now, urgent=True)
    attempt.done.wait(60)
    node.give(connection, now)
    assert not node.down
    assert node.why_unasked.code == REFUSED


@pytest.mark.slow
def test_settings_with_the_new_password(rotation):
    """Settings that change are used at once, and who held a lock before still does."""
    rotation.vault.password = OLD
    with in_force(rotation.nodes, rotation.user, OLD):
        lease = redlock("held").acquire()
        connect()
        if rotation.user:  # one after the other: both passwords are good for a while
            for node in rotation.nodes:
                with rotation.admin(node) as admin:
                    admin.execute_command("ACL SETUSER", rotation.user, f">{NEW}")
        else:
            rotation.rotate(0, 1, 2)
        with in_force(rotation.nodes, rotation.user, NEW):
            with redlock("other"):
                assert rotation.holders("other") == [0, 1, 2]
            assert told() == ["", "", ""]
            assert found() == [[]] * 3
            if rotation.user:
                lease.extend()
                rotation.rotate(0, 1, 2)
                lease.extend()
                lease.release()
                assert rotation.holders("held") == []
