"""Decide when a message that was refused comes back, as far as Celery and its broker have a say."""

from __future__ import annotations

import math
from typing import Final

from celery import Task
from celery.utils.quorum_queues import detect_quorum_queues

from django_redlock.work import backoff

VISIBILITY_TIMEOUT: Final = 3600.0  # seconds, of a Redis broker that is told nothing else


def pause(task: Task, times: int, *, for_slot: bool = False) -> float:
    """Return the seconds until a refused message comes back; see ``work.backoff.pause``.

    Args:
        times: how often the message has come back before.
        for_slot: whether it waits for a slot of a limit.
    """
    # A worker keeps a message with a countdown unacknowledged. If the broker took it for lost
    # meanwhile, each copy would be sent again, and the copies would multiply.
    longest, least = visibility_timeout(task) / 2, least_countdown(task)
    return backoff.pause(times, for_slot=for_slot, longest=longest, least=least)


def least_countdown(task: Task) -> float:
    """Return the shortest countdown that Celery can send, in seconds.

    Where one queue of the application is a quorum queue, RabbitMQ itself delays messages, for whole
    seconds, and Celery raises ValueError for less than one.
    """
    driver = task.app.producer_pool.connections.connection.transport.driver_type
    return 1.0 if detect_quorum_queues(task.app, driver)[0] else 0.0


def visibility_timeout(task: Task) -> float:
    """Return the seconds after which the broker takes an unacknowledged message for lost."""
    timeout = (task.app.conf.broker_transport_options or {}).get("visibility_timeout")
    if isinstance(timeout, int | float) and 0 < timeout < math.inf:
        return float(timeout)
    return VISIBILITY_TIMEOUT
