"""Other people's locks in the museum: real libraries, in environments of their own."""

from __future__ import annotations

import os
import re
import time

import pytest

from benchmarks.peers import PeerUnavailable
from benchmarks.peers.environments import NODE_PEERS, PYTHON_PEERS, has_node
from museum import history
from museum.cells import Cell, others
from museum.exhibits import Exhibit
from museum.play import play
from museum.room import Room
from museum.runs import holders

CELLS = {cell.key: cell for cell in others.CELLS}
TURNS = [cell for cell in others.CELLS if cell.run is holders.TURNS]
TELLING = (  # beside it another library's, or the same one's, that does not break
    ("redlock-py/clock-set-right", "pottery/clock-set-right"),
    ("node-redlock-5/stopped-acquiring", "node-redlock-4/stopped-acquiring"),
    ("redlock-py/down", "redlock-ng/down"),
    ("redis-py/paused", "redis-py/killed"),
    ("fencekit/stopped-acquiring", "fencekit/paused"),
    ("django-redis/emptied", "django-redis/turns"),
    ("python-redis-lock/woken", "python-redis-lock/crowd"),
)
CANNOT_EXTEND = {"redlock-py"}
WAIT = 20.0


def absent(exhibit: Exhibit, why: str) -> None:
    """Skip what cannot be installed here, but not where all must run."""
    if os.environ.get("CI") and (not exhibit.package or has_node()):
        pytest.fail(why)
    pytest.skip(why)


def shows(cell: Cell) -> bool:
    """Whether a play shows what it must; a machine that stalls may make another one necessary."""
    for _ in range(3):
        played = play(cell)
        if played.absent:
            absent(cell.exhibit, played.error)
        if played.is_expected:
            return True
    return False


def test_each_is_shown_as_its_author_meant_it():
    """There is a cell in which two clients take turns for each library, and nothing breaks."""
    assert [cell.exhibit for cell in TURNS] == others.EXHIBITS
    assert not any(cell.breaks for cell in TURNS)


def test_versions_are_those_that_are_installed():
    """A title, and a sentence about a library, has the version of the environment."""
    pins = [pin.partition("==")[2] for pins in PYTHON_PEERS.values() for pin in pins]
    pins += [pin.rpartition("@")[2] for pin in NODE_PEERS.values()]
    for exhibit in others.EXHIBITS:
        pinned = NODE_PEERS[exhibit.package] if exhibit.package else PYTHON_PEERS[exhibit.peer][0]
        assert re.split("==|@", pinned)[-1] in exhibit.title
    for cell in others.CELLS:
        assert set(re.findall(r"\d+\.\d+\.\d+", cell.why)) <= set(pins)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("cell", TURNS, ids=lambda cell: cell.exhibit.key)
def test_two_clients_take_turns(cell):
    """Where nothing happens each library keeps two clients apart, and loses no update."""
    assert shows(cell)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("breaks", "holds"), TELLING)
def test_what_breaks_and_what_does_not(breaks, holds):
    """A library breaks in the way that its cell says; and what it is compared with does not."""
    assert CELLS[breaks].breaks
    assert CELLS[holds].breaks < CELLS[breaks].breaks
    assert shows(CELLS[breaks])
    assert shows(CELLS[holds])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("exhibit", others.EXHIBITS, ids=lambda exhibit: exhibit.key)
def test_one_can_hold_for_longer(exhibit):
    """A client that extends has the lock still, another one is refused; times are of one clock."""
    if exhibit.key in CANNOT_EXTEND:
        return
    with Room(exhibit, ttl=30.0) as room:
        start = time.monotonic()
        try:
            first = room.client("A")
        except PeerUnavailable as error:
            absent(exhibit, str(error))
        second = room.client("B")
        assert first.acquire(WAIT)
        assert first.extend()
        assert not second.acquire(0)
        first.release()
        assert second.acquire(WAIT)
        told = [event for event in room.events() if event.what == history.HOLDS]
        assert [event.who for event in told] == ["A", "A", "B"]
        assert start < told[0].at < told[-1].at < time.monotonic()
        for event in told:
            assert event.more["until"] is None or 0 < event.more["until"] - event.at <= 30
