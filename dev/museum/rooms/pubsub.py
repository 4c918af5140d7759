"""Waiting for a message instead of asking again: a release is published."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Final

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.client import PubSub
from redis.retry import Retry

from dev.museum import faults
from dev.museum.cell import LOST, STUCK, TWO, Hold, Lock, Setup, client_of, fault

if TYPE_CHECKING:
    from dev.museum.stage import Client, Stage

# -- the recipes -----------------------------------------------------------------------------------

UNLOCK: Final = """
if redis.call("get", KEYS[1]) == ARGV[1] then
    redis.call("del", KEYS[1])
    redis.call("publish", KEYS[2], "free")
end
"""


class PubSubForever:
    """A client that finds the lock taken subscribes, and sleeps until a message says it is free."""

    def __init__(self, setup: Setup) -> None:
        self.redis = client_of(setup)
        # As redis.Redis() has it by default: it connects again by itself, and subscribes again.
        again = Retry(ExponentialWithJitterBackoff(base=0.01, cap=1), 10)
        self.subscriber = redis.Redis.from_url(setup.urls[0], retry=again)
        self.key, self.channel = setup.name, f"{setup.name}:free"
        self.ttl, self.point = setup.milliseconds, setup.point

    def acquire(self, wait: float) -> Hold | None:
        """Look, subscribe, sleep, look again."""
        end = time.monotonic() + wait
        with self.subscriber.pubsub(ignore_subscribe_messages=True) as messages:
            while not self.look(messages):
                self.subscribe(messages)
                seconds = self.seconds(end - time.monotonic())
                self.point("asleep")
                sleep(messages, seconds)
                if time.monotonic() >= end:
                    return None
        return Hold()

    def look(self, _messages: PubSub) -> bool:
        self.value = secrets.token_hex(16)
        return bool(self.redis.set(self.key, self.value, nx=True, px=self.ttl))

    def subscribe(self, messages: PubSub) -> None:
        if not messages.subscribed:
            self.point("between look and SUBSCRIBE")
            messages.subscribe(self.channel)

    def seconds(self, left: float) -> float:
        """For how long it sleeps when no message comes: for all the time it has."""
        return left

    def release(self) -> None:
        """Delete the key if it is still our own, and publish that."""
        self.redis.eval(UNLOCK, 2, self.key, self.channel, self.value)


class PubSubTtl(PubSubForever):
    """It looks once more when it has subscribed, and sleeps no longer than the key lives."""

    def look(self, messages: PubSub) -> bool:
        if super().look(messages):
            return True
        if messages.subscribed:
            return False
        self.subscribe(messages)
        return super().look(messages)

    def seconds(self, left: float) -> float:
        return min(left, max(self.redis.pttl(self.key), 0) / 1000)


def sleep(messages: PubSub, seconds: float) -> None:
    """Sleep until a message comes, or for so long."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if messages.get_message(timeout=left):
            return


# -- the faults ------------------------------------------------------------------------------------


def wait_in(stage: Stage, waiter: Client) -> None:
    """Let a client ask, and wait until it has subscribed."""
    waiter.tell("acquire", wait=faults.SOON)
    server = stage.server()
    stage.wait_for(lambda: bool(server.client_list("pubsub")), "a subscriber")


@fault(ttl=faults.LONG, patience=0.5)
def hand_over(stage: Stage) -> None:
    """One waits, and the holder releases."""
    first, second = stage.clients("AB")
    for _ in range(3):
        assert first.take(faults.SOON)
        first.use()
        wait_in(stage, second)
        first.release()
        second.use_if_held()


@fault(ttl=faults.LONG, patience=1.5)
def killed_waited_for(stage: Stage) -> None:
    """The holder is killed while one waits for its message."""
    first, second = stage.clients("AB")
    assert first.take(faults.SOON)
    wait_in(stage, second)
    first.kill()
    second.use_if_held()


@fault(ttl=faults.LONG, patience=0.5)
def early_release(stage: Stage) -> None:
    """The lock is released between a waiter's look and its SUBSCRIBE."""
    first, second = stage.clients("AB")
    assert first.take(faults.SOON)
    first.use()
    second.halt_at("between look and SUBSCRIBE", "acquire", wait=faults.SOON)
    first.release()
    second.resume()
    second.use_if_held()


@fault(ttl=faults.LONG, patience=0.5)
def killed_subscription(stage: Stage) -> None:
    """A waiter's subscription breaks just when the lock is released."""
    first, second = stage.clients("AB")
    assert first.take(faults.SOON)
    first.use()
    second.halt_at("asleep", "acquire", wait=faults.SOON)
    stage.server().client_kill_filter(_type="pubsub")
    stage.note("the subscription of B is killed")
    first.release()
    second.resume()
    second.use_if_held()


# -- what is counted -------------------------------------------------------------------------------

FOREVER = Lock("pubsub-forever", "Pub/sub, sleeping until a message", PubSubForever)
TTL = Lock("pubsub-ttl", "Pub/sub, sleeping for a ttl", PubSubTtl)
NOT_PUBLISHED = "The key ends by its ttl, and nobody publishes that."
TOO_EARLY = "The message went out before the waiter had subscribed, and there is no other one."
CONNECTED_AGAIN = "The message is lost, and the client library connects again without a word."
SLEEPS_ON = "The message is lost, and the waiter sleeps for what was left of the ttl."
CELLS = [
    *FOREVER.holds(hand_over),
    FOREVER.breaks(killed_waited_for, STUCK, why=NOT_PUBLISHED),
    FOREVER.breaks(early_release, STUCK, why=TOO_EARLY),
    FOREVER.breaks(killed_subscription, STUCK, why=CONNECTED_AGAIN),
    *TTL.holds(hand_over, *faults.USUAL, killed_waited_for, early_release),
    TTL.breaks(faults.paused, TWO, LOST, why=faults.NOT_TOLD),
    TTL.breaks(killed_subscription, STUCK, why=SLEEPS_ON),
]
