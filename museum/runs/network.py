"""What the network does: replies and messages that do not arrive."""

from __future__ import annotations

from contextlib import closing, suppress

from museum.client import ClientError
from museum.room import NAME, Room

from .holders import LONG, SOON
from .run import Run


def lose_the_reply(room: Room) -> None:
    """All servers give the lock to one, and their replies are lost; then another one asks."""
    first, second = room.client("A", ways=True), room.client("B")
    assert first.take_a_turn(SOON)  # its connections are there: what is lost is no greeting
    room.lose_replies(first, range(len(room.nodes)), 1)
    with suppress(ClientError):  # it says that it does not know
        first.take_a_turn(SOON)
    second.take_a_turn(SOON)


def recognise_late(room: Room) -> None:
    """A reply is lost; that client looks for its own key when half of the ttl is over."""
    first, second = room.client("A", ways=True), room.client("B")
    assert first.take_a_turn(SOON)
    first.ask("halt", at="after a reply that did not come")
    room.lose_replies(first, [0], 1)
    first.tell("acquire", wait=SOON)
    first.wait_until_stopped()
    with closing(room.nodes[0].client()) as client:
        room.wait_for(lambda: client.pttl(NAME) < room.ttl * 500, SOON, "half of the ttl to pass")
    first.go_on()
    if first.answer()["held"]:
        first.read()
        assert second.acquire(SOON)
        second.use()
        first.write()
        second.release()
        first.release()


def hand_over(room: Room) -> None:
    """One waits for a message, and the holder's release sends it."""
    first, second = room.client("A"), room.client("B")
    for _ in range(3):
        assert first.acquire(SOON)
        first.use()
        second.tell("acquire", wait=SOON)
        with closing(room.nodes[0].client()) as client:
            room.wait_for(lambda: bool(client.client_list("pubsub")), SOON, "a subscriber")
        first.release()
        if second.answer()["held"]:
            second.use()
            second.release()


def kill_before_the_message(room: Room) -> None:
    """One waits for a message, and the holder dies: nobody sends one when its key ends."""
    first, second = room.client("A"), room.client("B")
    assert first.acquire(SOON)
    second.tell("acquire", wait=SOON)
    with closing(room.nodes[0].client()) as client:
        room.wait_for(lambda: bool(client.client_list("pubsub")), SOON, "a subscriber")
    first.kill()
    if second.answer()["held"]:
        second.use()
        second.release()


def release_before_subscribe(room: Room) -> None:
    """One finds the lock taken; it is released before that client has subscribed."""
    first, second = room.client("A"), room.client("B")
    assert first.acquire(SOON)
    first.use()
    second.ask("halt", at="between look and SUBSCRIBE")
    second.tell("acquire", wait=SOON)
    second.wait_until_stopped()
    first.release()
    second.go_on()
    if second.answer()["held"]:
        second.use()
        second.release()


def kill_the_subscription(room: Room) -> None:
    """One sleeps until a message comes; its connection breaks, and the lock is released then."""
    first, second = room.client("A"), room.client("B")
    assert first.acquire(SOON)
    first.use()
    second.ask("halt", at="asleep")
    second.tell("acquire", wait=SOON)
    second.wait_until_stopped()
    with closing(room.nodes[0].client()) as client:
        client.client_kill_filter(_type="pubsub")
    room.note("the subscription of B is killed")
    first.release()
    second.go_on()
    if second.answer()["held"]:
        second.use()
        second.release()


LOST_REPLY = Run(
    "lost-reply", "replies", lose_the_reply,
    "the servers give the lock, and their replies are lost", ttl=LONG, patience=0.5,
)  # fmt: skip
RECOGNISED_LATE = Run(
    "recognised-late", "replies", recognise_late,
    "a reply is lost, and the client finds its own key when half of the ttl is over", ttl=LONG,
)  # fmt: skip
HAND_OVER = Run(
    "hand-over", "none", hand_over, "one waits, and the holder releases", ttl=LONG, patience=0.5
)
KILLED_BEFORE_THE_MESSAGE = Run(
    "killed-waited-for", "killed", kill_before_the_message,
    "the holder is killed while one waits for its message", ttl=LONG, patience=1.5,
)  # fmt: skip
RELEASED_BEFORE_SUBSCRIBE = Run(
    "early-release", "replies", release_before_subscribe,
    "the lock is released between a waiter's look and its SUBSCRIBE", ttl=LONG, patience=0.5,
)  # fmt: skip
KILLED_SUBSCRIPTION = Run(
    "killed-subscription", "replies", kill_the_subscription,
    "a waiter's subscription breaks just when the lock is released", ttl=LONG, patience=0.5,
)  # fmt: skip
