"""Waiting for a message instead of asking again: a release is published."""

from __future__ import annotations

import secrets
import time

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.client import PubSub
from redis.retry import Retry

from .interface import Hold, Place
from .polling import client_of, milliseconds

UNLOCK = """
if redis.call("get", KEYS[1]) == ARGV[1] then
    redis.call("del", KEYS[1])
    redis.call("publish", KEYS[2], "free")
end
"""


class PubSubForever:
    """A client that finds the lock taken subscribes, and sleeps until a message says it is free."""

    def __init__(self, place: Place) -> None:
        self.redis = client_of(place)
        # As redis.Redis() has it by default: it connects again by itself, and subscribes again.
        again = Retry(ExponentialWithJitterBackoff(base=0.01, cap=1), 10)
        self.subscriber = redis.Redis.from_url(place.urls[0], retry=again)
        self.key, self.channel = place.name, f"{place.name}:free"
        self.ttl, self.point = milliseconds(place.ttl), place.point

    def acquire(self, wait: float) -> Hold | None:
        """Look, subscribe, sleep, look again."""
        end = time.monotonic() + wait
        with self.subscriber.pubsub(ignore_subscribe_messages=True) as messages:
            while not self._look(messages):
                self._subscribe(messages)
                seconds = self._seconds(end - time.monotonic())
                self.point("asleep")
                _sleep(messages, seconds)
                if time.monotonic() >= end:
                    return None
        return Hold()

    def _look(self, _messages: PubSub) -> bool:
        self.value = secrets.token_hex(16)
        return bool(self.redis.set(self.key, self.value, nx=True, px=self.ttl))

    def _subscribe(self, messages: PubSub) -> None:
        if not messages.subscribed:
            self.point("between look and SUBSCRIBE")
            messages.subscribe(self.channel)

    def _seconds(self, left: float) -> float:
        """For how long it sleeps when no message comes: for all the time it has."""
        return left

    def release(self) -> None:
        """Delete the key if it is still our own, and publish that."""
        self.redis.eval(UNLOCK, 2, self.key, self.channel, self.value)


class PubSubTtl(PubSubForever):
    """It looks once more when it has subscribed, and sleeps no longer than the key lives."""

    def _look(self, messages: PubSub) -> bool:
        if super()._look(messages):
            return True
        if messages.subscribed:
            return False
        self._subscribe(messages)
        return super()._look(messages)

    def _seconds(self, left: float) -> float:
        lives = self.redis.pttl(self.key)
        return min(left, max(lives, 0) / 1000)


def _sleep(messages: PubSub, seconds: float) -> None:
    """Sleep until a message comes, or for so long."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if messages.get_message(timeout=left):
            return
