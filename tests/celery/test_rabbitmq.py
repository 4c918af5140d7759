"""``locked_task`` with a real RabbitMQ as the broker, whose ``redelivered`` flag is its own."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import pytest
from kombu.connection import Connection

from tests.support.proxy import Proxy
from tests.support.rabbitmq import rabbitmq, why_not
from tests.support.waiting import eventually

from . import varied
from .site import (
    GET,
    Site,
    end,
    ended_silently,
    new_key,
    runs,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not()), reason=f"RabbitMQ cannot be started: {why_not()}"),
]


class Rabbit(NamedTuple):
    """A RabbitMQ, beside the site whose Redis stores the results."""

    site: Site
    url: str
    connection: Connection

    def send(self, task: Any, *args: Any, queue: str, **options: Any) -> Any:
        """Send a message to RabbitMQ."""
        return task.apply_async(args, queue=queue, connection=self.connection, **options)

    def worker(self, children: int, queue: str, **more: Any) -> Any:
        """A worker that takes messages from RabbitMQ."""
        return self.site.worker(children, queue, broker=self.url, **more)

    def comes_to(self, count: int, queue: str) -> None:
        """Wait until a queue has so many messages that no worker has been given.

        RabbitMQ confirms no message that it is sent, and gives back those of a worker when it
        finds its connection closed.
        """

        def waiting() -> int:
            with self.connection.channel() as channel:
                return int(channel.queue_declare(queue, passive=True).message_count)

        eventually(lambda: waiting() == count, within=GET, every=0.02, what=f"{count} in {queue}")

    def redelivered(self, key: str) -> int:
        """How many messages of a key a worker got with the flag of the broker."""
        return len(self.site.notes("redelivered", key))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """One RabbitMQ for all tests of this process."""
    with rabbitmq() as url:
        yield url


@pytest.fixture
def rabbit(site: Site, server: str) -> Iterator[Rabbit]:
    """A broker with lock nodes that are as new."""
    # A message that is sent is in its queue: else it may be counted before the broker has read it.
    confirmed = {"confirm_publish": True}
    with closing(Connection(server, transport_options=confirmed)) as connection:
        yield Rabbit(site, server, connection)


def test_the_message_of_a_killed_worker_is_delivered_again_and_runs(rabbit):
    """RabbitMQ says so itself, at once, and the copy waits for the lock of the dead run."""
    key, queue = new_key(), new_key()
    result = rabbit.send(varied.kept, key, queue=queue)
    with rabbit.worker(1, queue) as worker:
        site = rabbit.site
        site.begun(key)
        assert rabbit.redelivered(key) == 0
        end(worker, signal.SIGKILL)
    with rabbit.worker(1, queue):
        site.begun(key, times=2)
        assert rabbit.redelivered(key) >= 1
        site.end_run(key)
        assert result.get(timeout=GET) == "done"
    assert runs(site, key) == 2
    rabbit.comes_to(0, queue)


def test_a_redelivered_copy_waits_while_the_first_run_lives(rabbit):
    """The connection of a worker is cut, and its body goes on: the copy waits and does not run."""
    key, queue, site = new_key(), new_key(), rabbit.site
    result = rabbit.send(varied.kept, key, queue=queue)
    port = int(re.findall(r":(\d+)/", rabbit.url)[0])
    with Proxy(port) as proxy:
        by_proxy = rabbit.url.replace(f":{port}/", f":{proxy.port}/")
        with site.worker(1, queue, broker=by_proxy):
            site.begun(key)
            proxy.cut()
            with rabbit.worker(1, queue):
                eventually(lambda: ended_silently(site, result.id), within=GET, every=0.05)
                assert (runs(site, key), rabbit.redelivered(key)) == (1, 1)
                site.end_run(key)
                assert result.get(timeout=GET) == "done"
                eventually(partial(finished_before, site, result.id), within=GET, every=0.05)
                proxy.heal()
    assert (runs(site, key), result.state) == (1, "SUCCESS")
    rabbit.comes_to(0, queue)


def finished_before(site: Site, task_id: str) -> bool:
    """Whether a worker said that a copy met the record of the first run."""
    logs = "".join(path.read_text() for path in site.logs.iterdir())
    return f"[{task_id}] has finished before" in logs
