from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import import_module

import pytest

from django_redlock.testing import EmbeddedNode
from museum import history
from museum.cells import CELLS, first_locks, messages, one_server
from museum.checker import Break, judge
from museum.exhibits import Exhibit
from museum.history import Event
from museum.play import play
from museum.recipes.interface import Hold, Place, Recipe
from museum.replica import Replica
from tests.support.proxy import Fault, Proxy
from tests.support.replays import note_broken

NAME = "lock"
EXHIBITS = {
    exhibit.key: exhibit
    for group in (first_locks, one_server, messages)
    for exhibit in group.EXHIBITS
}
DELETE_ANY = {"setnx-del", "setnx-expire", "setnx-getset", "set-del"}
WITHOUT_TTL = {"setnx-del", "setnx-getset"}
PLAYED = [
    "setnx-getset/overwritten",
    "set-compare/failover",
    "set-compare/failover-lagging",
    "pull-mode/overtaken",
    "pubsub-ttl/killed-subscription",
]
New = Callable[..., Recipe]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedNode]:
    """One server for all tests of a process."""
    node = EmbeddedNode()
    node.start()
    yield node
    node.close()


@pytest.fixture
def new(server: EmbeddedNode) -> Iterator[New]:
    """Return what makes a client of a recipe; the server is empty."""
    with closing(server.client()) as client:
        client.flushall()
    made: list[Recipe] = []

    def make(key: str, *, url: str = "", at: Callable[[str], None] = lambda _: None) -> Recipe:
        place = Place([url or server.url], NAME, ttl=60, timeout=0.3, store="", point=at)
        made.append(_recipe(EXHIBITS[key], place))
        return made[-1]

    yield make
    for each in made:
        for name in {"redis", "subscriber"} & vars(each).keys():
            vars(each)[name].close()


def _recipe(exhibit: Exhibit, place: Place) -> Recipe:
    module, _, name = exhibit.recipe.partition(":")
    recipe: Recipe = getattr(import_module(module), name)(place)
    return recipe


@pytest.mark.parametrize("key", EXHIBITS)
def test_a_lock_is_for_one_until_it_is_released(new, key):
    """A second client gets the lock after the release of the first one, and not before."""
    first, second = new(key), new(key)

    assert first.acquire(0) is not None
    assert second.acquire(0) is None
    first.release()
    assert second.acquire(0) is not None


@pytest.mark.parametrize("key", EXHIBITS)
def test_a_release_that_does_not_compare_deletes_the_key_of_another(server, new, key):
    """The release leaves the key of a later holder where it compares the value first."""
    late = new(key)
    late.acquire(0)
    with closing(server.client()) as client:
        client.set(NAME, "another's")
        late.release()

        assert client.exists(NAME) == (key not in DELETE_ANY)


@pytest.mark.parametrize("key", EXHIBITS)
def test_what_ends_the_lock_of_a_dead_client(server, new, key):
    """The server ends it by a ttl, but for the two locks from before SET could give one."""
    new(key).acquire(0)

    with closing(server.client()) as client:
        assert (client.pttl(NAME) == -1) == (key in WITHOUT_TTL)


def test_a_crash_between_setnx_and_expire_leaves_a_key_for_ever(server, new):
    """A client that dies after SETNX leaves a key without a ttl."""

    def die(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        new("setnx-expire", at=die).acquire(0)

    with closing(server.client()) as client:
        assert client.pttl(NAME) == -1


def test_of_two_that_take_over_one_gets_it_and_the_other_overwrites_its_time(server, new):
    """GETSET gives a dead client's lock to one client, and the time of the loser is left."""
    fast = new("setnx-getset")
    written: list[bytes | None] = []
    with closing(server.client()) as client:
        client.set(NAME, "1.5")

        def overtake(_: str) -> None:
            assert fast.acquire(0) is not None
            written.append(client.get(NAME))

        assert new("setnx-getset", at=overtake).acquire(0) is None
        assert client.get(NAME) not in written


@pytest.mark.parametrize("key", ["pull-mode", "pull-recognising"])
def test_a_lost_reply_to_the_pull_mode_lock(server, new, key):
    """Its key is there; only the variant that looks for it knows that it has the lock."""
    with Proxy(server.port) as way:
        recipe = new(key, url=way.url)
        recipe.acquire(0)
        recipe.release()
        way.inflict(Fault.SILENCE, 1)
        held = recipe.acquire(0)

    with closing(server.client()) as client:
        assert client.exists(NAME)
    assert (held is not None) == (key == "pull-recognising")


@pytest.mark.parametrize(
    ("key", "where", "is_woken"),
    [
        ("pubsub-forever", "asleep", True),
        ("pubsub-forever", "between look and SUBSCRIBE", False),
        ("pubsub-ttl", "asleep", True),
        ("pubsub-ttl", "between look and SUBSCRIBE", True),
    ],
)
def test_a_message_wakes_those_who_have_subscribed(new, key, where, is_woken):
    """A release before SUBSCRIBE wakes nobody, so one must look again after it."""
    holder = new(key)
    holder.acquire(0)

    def release(point: str) -> None:
        if point == where:
            holder.release()

    held = new(key, at=release).acquire(20 if is_woken else 0.3)

    assert (held is not None) == is_woken


@pytest.mark.parametrize("lags", [False, True])
def test_a_replica_that_lags_has_no_lock(server, lags):
    """After a failover the address leads to a server that has the key if it had caught up."""
    master = EmbeddedNode()
    try:
        master.start()
        with Replica(master) as replica:
            if lags:
                replica.lag()
            place = Place([replica.address.url], NAME, ttl=60, timeout=5, store="")
            assert _acquire_once(place) is not None
            if not lags:
                replica.catch_up()
            replica.fail_over()

            assert (_acquire_once(place) is not None) == lags
    finally:
        master.close()


def _acquire_once(place: Place) -> Hold | None:
    recipe = _recipe(EXHIBITS["set-compare"], place)
    try:
        return recipe.acquire(0)
    finally:
        vars(recipe)["redis"].close()


@pytest.mark.parametrize("newcomers", [2, 3])
@pytest.mark.parametrize("is_refused", [False, True])
def test_one_who_is_refused_after_three_who_came_later_has_starved(newcomers, is_refused):
    """The checker counts who asked later than one who waits, and got the lock first."""
    told = [("C", history.ASKS)]
    for _ in range(newcomers):
        told += [("B", what) for what in (history.ASKS, history.HOLDS, history.RELEASES)]
    told.append(("C", history.REFUSED if is_refused else history.HOLDS))

    found = judge([Event(at, who, what) for at, (who, what) in enumerate(told)])

    starved = is_refused and newcomers == 3
    assert (Break.STARVED in found.breaks(100)) == starved


@pytest.mark.slow
@pytest.mark.parametrize("key", PLAYED)
def test_a_cell_shows_what_it_must(key):
    """A recipe in the run that breaks it, or holds, as real processes."""
    (cell,) = [each for each in CELLS if each.key == key]
    if cell.breaks:
        note_broken(key)
    played = play(cell)

    assert not played.error
    assert played.seen == cell.breaks
