"""The faults that several rooms share: what happens to clients and servers, as scripts.

A script serves any number of servers. The docstring of a fault begins with what readers of the
table see.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from string import ascii_uppercase
from typing import TYPE_CHECKING

from .cell import ClientError, fault

if TYPE_CHECKING:
    from .stage import Client, Stage

LONG = 6.0  # seconds of a ttl that no stall of a busy machine outlasts
SOON = 12.0  # seconds for which a second client waits
SHORTLY = 1.0  # seconds, less than a ttl: on a busy machine the first attempt may time out
PATIENT = 30.0  # seconds for which a client waits for a server, where replies are held back
AHEAD = 30  # seconds by which a clock is wrong

# Why the locks of several rooms break, or hold.
NOT_TOLD = "The ttl is over, and the client that goes on does not know it."
ANOTHERS = "DEL deletes the key of the next holder, and a third client comes in."
FORGOTTEN = "The server has forgotten the key, and gives the lock a second time."
IN_TIME = "It measures how long the servers took, and refuses a lock whose time is over."
HOWEVER_LATE = "It takes a grant for good however late it comes."
COMPARED = "It deletes the key only where its own value is in it."
NO_END = "It does not tell its user until when the lock is held, and nobody stops the late write."
TAKEN_BACK = "It takes its votes back before it asks again, after a pause of a random length."
WALL_CLOCK = (
    "It measures by the wall clock how long the servers took. When that is set back in between,"
    " the holder has the lock for 30 s by what it is told, and the servers keep it for the ttl."
)
NO_GUARD = (
    "A server that starts empty votes at once: also for the second of two majorities that have"
    " only this server in common."
)
LATE_WRITE = "No lock stops a write that is already on its way: the row must refuse it."

# -- nothing, and many clients ---------------------------------------------------------------------


@fault(ttl=LONG, patience=1)
def turns(stage: Stage) -> None:
    """Two clients take turns.

    First one after the other, and then both at once.
    """
    first, second = stage.clients("AB")
    for client in (first, second, first):
        assert client.take_a_turn(SOON)
    assert first.take(SOON)
    assert not second.take()
    first.release()
    _work([first, second], times=3)


@fault(ttl=LONG, patience=1)
def crowd(stage: Stage) -> None:
    """Four clients want it all the time."""
    _work(stage.clients("ABCD"), times=8)


def _work(clients: Sequence[Client], times: int) -> None:
    """Let clients lock, read, write and release at once, so many times each."""
    for client in clients:
        client.tell("work", times=times)
    for client in clients:
        client.answer()


@fault(ttl=LONG, patience=0.5)
def votes_split(stage: Stage) -> None:
    """Three ask at once, and each gets one of three servers."""
    clients = stage.clients("ABC", is_proxied=True, timeout=PATIENT)
    for client in clients:
        stage.warm_up(client)
    for own, client in enumerate(clients):
        for index in range(len(clients)):
            stage.proxy(client, index).holding = int(index != own)
        client.tell("work", times=1)
    for index in range(len(clients)):
        stage.wait_until_locked(index)
    stage.note("each server has voted for another client")
    for client in clients:
        for index in range(len(clients)):
            stage.proxy(client, index).let_go()
    for client in clients:
        client.answer()


# -- holders that die, stop and hang ---------------------------------------------------------------


@fault()
def killed(stage: Stage) -> None:
    """The holder is killed."""
    first, second = stage.clients("AB")
    assert first.take(SOON)
    first.kill()
    second.take_a_turn(SOON / 2)


@fault()
def paused(stage: Stage) -> None:
    """The holder is stopped (SIGSTOP) past its ttl.

    It has read. Then it writes what it made of its old reading.
    """
    first, second = stage.clients("AB")
    assert first.take(SOON)
    first.read()
    first.stop()
    has_both = second.take(SOON)
    if has_both:
        second.use()
    first.resume()
    first.write()
    if has_both:
        second.release()
    first.release()


@fault()
def writes_between(stage: Stage) -> None:
    """A paused holder writes between its successor's read and write."""
    first, second = stage.clients("AB")
    assert first.take(SOON)
    first.read()
    first.stop()
    assert second.take(SOON)
    second.read()
    first.resume()
    first.write()
    second.write()
    second.release()
    first.release()


@fault(patience=4)
def hangs(stage: Stage) -> None:
    """A holder's work hangs, and its process lives on."""
    first, second = stage.clients("AB")
    assert first.take(SOON)
    first.hang()
    second.take_a_turn(SOON / 2)


@fault(ttl=LONG)
def late_release(stage: Stage) -> None:
    """A client is stopped before its release is sent, and goes on when another one has the lock.

    When the release has come, a third one asks.
    """
    first, second, third = stage.clients("ABC")
    assert first.take(SOON)
    first.use()
    first.halt_at("release", "release")
    assert second.take(SOON)
    second.read()
    first.resume()
    first.answer()
    has_both = third.take()
    if has_both:
        third.use()
    second.write()
    if has_both:
        third.release()
    second.release()


USUAL = turns, crowd, killed

# -- locks that several may hold -------------------------------------------------------------------


@fault(ttl=LONG, patience=0.5)
def full(stage: Stage) -> None:
    """One more asks than may, and has it when another one has released it."""
    *inside, more = stage.clients(ascii_uppercase[: stage.limit + 1])
    for client in inside:
        assert client.take(SOON)
    assert not more.take()
    more.tell("acquire", wait=SOON)
    inside[0].release()
    assert more.has_it()
    for client in (*inside[1:], more):
        client.release()


@fault(ttl=LONG, patience=0.75)
def killed_of_several(stage: Stage) -> None:
    """One of those that may hold it at once is killed."""
    dead, *others = stage.clients(ascii_uppercase[: stage.limit + 1])
    assert dead.take(SOON)
    dead.kill()
    time.sleep(stage.ttl / 2)  # so that the time of the dead one is over long before the others'
    inside = [client for client in others if client.take(SOON / 2)]
    for client in inside:
        client.release()


# -- replies and requests that come late, or not at all --------------------------------------------


@fault(ttl=LONG, patience=0.5)
def lost_reply(stage: Stage) -> None:
    """The servers give the lock, and their replies are lost."""
    first, second = stage.client("A", is_proxied=True), stage.client("B")
    assert first.take_a_turn(SOON)  # its connections are there: what is lost is no greeting
    stage.lose_replies(first, range(len(stage.nodes)))
    with suppress(ClientError):  # it says that it does not know
        first.take_a_turn(SOON)
    second.take_a_turn(SOON)


@fault(ttl=2)
def stopped_acquiring(stage: Stage) -> None:
    """A client is stopped past the ttl while the replies of the servers wait for it."""
    first, second = stage.client("A", is_proxied=True, timeout=PATIENT), stage.client("B")
    late = _ask_without_replies(stage, first)
    first.stop()
    _send_replies(stage, first, late)
    _take_when_free(stage, second)
    second.read()
    first.resume()
    has_both = first.has_it()
    if has_both:
        first.use()
    second.write()
    second.release()
    if has_both:
        first.release()


@fault(ttl=2)
def clock_set_right(stage: Stage) -> None:
    """A client's clock is 30 s ahead, and is set right while it asks.

    Locks that measure by that clock believe that the replies came at once, or before.
    """
    first = stage.client("A", is_proxied=True, ahead=AHEAD, timeout=PATIENT)
    second = stage.client("B")
    late = _ask_without_replies(stage, first)
    stage.set_clock_right(first)
    _send_replies(stage, first, late)
    has_it = first.has_it()
    _take_when_free(stage, second)
    second.use()
    second.release()
    if has_it:
        first.release()


def _ask_without_replies(stage: Stage, client: Client) -> Sequence[int]:
    """Let a client ask; return the indexes of the servers whose replies are held back.

    Of one server it hears at once, where there are more: a majority needs another one's reply.
    """
    stage.warm_up(client)
    late = range(1, len(stage.nodes)) or range(1)
    for index in late:
        stage.proxy(client, index).delay = PATIENT
    stage.note(f"replies to {client.name} are held back", client.name)
    client.tell("acquire", wait=0)
    stage.wait_until_locked(late[0])
    return late


def _send_replies(stage: Stage, client: Client, late: Sequence[int]) -> None:
    for index in late:
        stage.proxy(client, index).delay = 0.0
    stage.note(f"replies to {client.name} are sent", client.name)


def _take_when_free(stage: Stage, client: Client) -> None:
    """Let a client ask when the ttl of the one before is over: it has not waited by itself."""
    for index in range(len(stage.nodes)):
        stage.wait_until_free(index)
    assert client.take(SOON)


@fault(ttl=2)
def release_on_its_way(stage: Stage) -> None:
    """A release arrives when its client has the lock again.

    A proxy holds it on its way to one server. The client reaches a bare majority, so each of its
    servers counts.
    """
    last = len(stage.nodes) // 2
    first = stage.client("A", without=range(last + 1, len(stage.nodes)))
    second = stage.client("B")
    assert first.take_a_turn(SOON)
    assert first.take(SOON)
    stage.proxy(first, last).holding = 1
    first.release()
    stage.wait_until_free(last)
    has_it = first.take(SHORTLY)
    stage.let_go(first, last)
    if has_it or first.take(SOON):
        first.read()
        challenge(first, second)


# -- servers that die, forget, fail over and cannot be reached -------------------------------------


def challenge(first: Client, second: Client) -> None:
    """Let another one ask for a lock that the first one has, and has read under.

    If it gets it, both write, unless the first one knows that its time is over. Else the first one
    ends, and the other one takes its turn.
    """
    try:
        has_both = second.take(SHORTLY)
    except ClientError:  # too few servers reply
        has_both = False
    if has_both:
        second.use()
    if first.believes():
        first.write()
    with suppress(ClientError):  # its server may be another one now
        first.release()
    if has_both:
        second.release()
    else:
        second.take_a_turn(SOON)


@fault(ttl=LONG, patience=1.5)
def minority(stage: Stage) -> None:
    """A minority of the servers is killed."""
    first, second = stage.clients("AB")
    assert first.take(SOON)
    first.read()
    for index in range((len(stage.nodes) - 1) // 2):
        stage.kill_node(index)
    challenge(first, second)


@fault()
def down(stage: Stage) -> None:
    """One of three servers is down when clients ask."""
    clients = stage.clients("AB", timeout=PATIENT)
    for client in clients:
        stage.warm_up(client)
    stage.kill_node(len(stage.nodes) - 1)
    with suppress(ClientError):  # it has told its user
        for client in clients:
            if not client.take_a_turn(SOON / 2):
                break


@fault(ttl=LONG)
def restarted(stage: Stage) -> None:
    """A server of the majority restarts empty.

    Each client reaches a bare majority. The two majorities have this server in common.
    """
    majority = len(stage.nodes) // 2 + 1
    first = stage.client("A", without=range(majority, len(stage.nodes)))
    second = stage.client("B", without=range(majority - 1))
    assert first.take(SOON)
    first.read()
    stage.restart_empty(majority - 1)
    challenge(first, second)


@fault(ttl=LONG)
def restarted_one(stage: Stage) -> None:
    """One server restarts empty; the client could reach all."""
    first, second = stage.clients("AB")
    assert first.take(SOON)
    first.read()
    stage.restart_empty(len(stage.nodes) // 2)
    challenge(first, second)


@fault(ttl=2)
def one_by_one(stage: Stage) -> None:
    """All servers restart empty, one after the other."""
    first, second = stage.clients("AB")
    assert first.take(SOON)
    first.read()
    for index in range(len(stage.nodes)):
        stage.restart_empty(index)
    challenge(first, second)


@fault(ttl=LONG)
def emptied(stage: Stage) -> None:
    """Somebody else empties the server.

    By what the library of the lock offers for that.
    """
    first, second, third = stage.clients("ABC")
    assert first.take(SOON)
    first.read()
    third.ask("call", what="empty")
    stage.note("C has emptied the server", "C")
    assert second.take(SOON)
    second.use()
    first.write()
    second.release()
    first.release()


@fault(ttl=LONG, has_replica=True)
def failover_lagging(stage: Stage) -> None:
    """The master dies, and a replica that has not heard of the lock takes its place.

    Of several servers it is one of a bare majority.
    """
    majority = len(stage.nodes) // 2 + 1
    first = stage.client("A", without=range(majority, len(stage.nodes)))
    second = stage.client("B")
    stage.lag()
    assert first.take(SOON)
    first.read()
    stage.fail_over(is_lagging=True)
    challenge(first, second)


@fault(ttl=LONG)
def split(stage: Stage) -> None:
    """One reaches a minority, another one the others."""
    first = stage.client("A", without=range(1, len(stage.nodes)))
    second = stage.client("B", without=[0])
    if first.take(SHORTLY):
        first.read()
        challenge(first, second)
    else:
        second.take_a_turn(SOON)


# -- clocks ----------------------------------------------------------------------------------------


@fault(ttl=LONG)
def clock_ahead(stage: Stage) -> None:
    """The clock of one that asks is 30 s ahead."""
    first, second = stage.client("A"), stage.client("B", ahead=AHEAD)
    assert first.take(SOON)
    first.read()
    challenge(first, second)


@fault(ttl=LONG, has_clocks=True)
def server_clock(stage: Stage) -> None:
    """The clock of a server jumps past the ttl; the other client's connections are older."""
    _jump(stage, is_seen=False)


@fault(ttl=LONG, has_clocks=True)
def server_clock_seen(stage: Stage) -> None:
    """The clock of a server jumps past the ttl; the other client connects after that."""
    _jump(stage, is_seen=True)


def _jump(stage: Stage, *, is_seen: bool) -> None:
    """Let the clock jump while one has a bare majority."""
    last = len(stage.nodes) // 2
    first = stage.client("A", without=range(last + 1, len(stage.nodes)))
    second = stage.client("B", is_warm=not is_seen)  # one that is not warm is not connected
    assert first.take(SOON)
    first.read()
    stage.set_server_clock(last, 2 * int(stage.ttl))
    stage.wait_until_free(last)
    challenge(first, second)
