"""The quick starts are typed into a new project, and do what they say on real nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from django_redlock.testing import EmbeddedNode
from tests.docs.pages import HEALTH, ONE_REDIS, ROOT, Block, Reader, blocks, examples, reader
from tests.support.databases import POSTGRESQL, database, why_not
from tests.support.waiting import eventually

HOW_TO = ROOT / "docs/how-to"
API = HOW_TO / "api-quick-start.md"
ADDRESS = "redis://127.0.0.1:6379/1"
PATIENT = "REDLOCK['default']['NODE_TIMEOUT'] = 10\n"  # a stall makes no node silent


@pytest.fixture
def someone(tmp_path: Path) -> Iterator[Reader]:
    """Somebody with an empty directory."""
    with reader(tmp_path, "mysite.settings") as typing:
        yield typing


# -- one Redis ------------------------------------------------------------------------------------


@pytest.fixture
def redis() -> Iterator[EmbeddedNode]:
    """The one that somebody has, a moment after its start."""
    with closing(EmbeddedNode()) as node:
        node.start()
        yield node


def test_one_redis(someone, redis):
    """No check warns, and locks are in the database of the page: to empty it clears them."""
    someone.begin("django-admin startproject mysite .")
    (settings,) = [block for block in blocks(ONE_REDIS) if block.file]
    assert ADDRESS in settings.text
    someone.write(settings)
    assert "no issues" in someone.run("python manage.py check")
    file = someone.home / settings.file
    ours = file.read_text().replace(ADDRESS, redis.url.rpartition("/")[0] + "/1")
    file.write_text(ours + PATIENT)
    assert someone.run("python manage.py redlock_status").startswith(
        "default: healthy (its node votes)"
    )
    shell = examples(ONE_REDIS)["the shell"]
    someone.type(shell)
    someone.type("lease = redlock('newsletter').acquire()")
    someone.type(shell)
    assert someone.seen == "sending\nanother process is sending it\n"
    with closing(redis.client()) as client:
        client.select(1)
        assert list(client.scan_iter("*newsletter*"))
        assert "redis-cli -n 1 FLUSHDB" in ONE_REDIS.read_text()
        client.flushdb()
    someone.type(ONCE_MORE)
    someone.type(shell)
    assert someone.seen.endswith("it lost its data\nsending\n")


ONCE_MORE = """
from django_redlock import NodesUnavailable

try:
    redlock("newsletter").acquire()
except NodesUnavailable:
    print("it lost its data")
"""
THREADS = """
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

def work(number):
    with ExitStack() as held:
        for each in range(20):
            held.enter_context(redlock(f"{number}:{each}", ttl=0.5))
            with redlock("shared", wait=60):
                pass

with ThreadPoolExecutor(4) as pool:
    list(pool.map(work, range(8)))
"""
TASKS = """
import asyncio
from django_redlock import redlock

async def work(number):
    async with redlock(f"task:{number}"), redlock("shared", wait=60):
        pass

async def all_of_them():
    await asyncio.gather(*map(work, range(20)))

asyncio.run(all_of_them())
"""


def test_connections_are_as_many_as_the_page_says(someone, redis):
    """Of a thread, of four threads that wait and whose leases are renewed, and of a loop."""
    someone.begin("django-admin startproject mysite .")
    for block in blocks(ONE_REDIS):
        if block.file:
            someone.write(Block("python", block.file, block.text.replace(ADDRESS, redis.url)))
    someone.write(Block("python", "mysite/settings.py", PATIENT))
    with closing(redis.client()) as client:
        own = client.client_id()

        def opened() -> int:
            return sum(int(each["id"]) != own for each in client.client_list())

        someone.type(examples(ONE_REDIS)["the shell"])
        assert opened() == 1
        someone.type(THREADS)
        assert "has six at most" in ONE_REDIS.read_text()
        assert 1 < opened() <= 6
        someone.close_shell()
        eventually(lambda: opened() == 0)
        someone.type(TASKS)
        assert opened() == 2


# -- an API on PostgreSQL -------------------------------------------------------------------------

LOGIN = """\
from django.contrib.auth.models import User
from django.test import Client
from django_redlock import redlock
from shop.models import Order

client = Client(SERVER_NAME="localhost")
client.force_login(User.objects.create_user("ann"))
"""
USE = """\
def create(prefix, key):
    headers = {"Idempotency-Key": key} if key else {}
    address = f"/{prefix}orders/?article=7"
    sent = client.post(address, {"article": 7}, "application/json", headers=headers)
    return sent.status_code, sent.json().get("order")

for prefix in ("", "api/"):
    key = f"8e03978e-40d5-43dd-bc93-6894a57f93{24 + len(prefix)}"
    first, again, without = create(prefix, key), create(prefix, key), create(prefix, "")
    paying = f"/{prefix}orders/{first[1]}/pay/"
    with redlock(f"order:{first[1]}"):
        refused = client.post(paying)
    paid = [client.post(paying).status_code for _ in range(2)]
    order = Order.objects.get(pk=first[1])
    nobody = client.post(f"/{prefix}orders/999/pay/").status_code
    print(first == again, without[0], refused.status_code, refused["Retry-After"], *paid,
          order.paid, order.fence > 0, nobody)
print(Order.objects.count())
"""
SEEN = 2 * "True 400 409 1 200 200 True True 404\n" + "2\n"


@pytest.mark.skipif(bool(why_not(POSTGRESQL)), reason=why_not(POSTGRESQL))
def test_an_api_pays_once(someone, patient_nodes):
    """In both frameworks, on PostgreSQL and real nodes: paid once, and created once."""
    new, *others = re.findall(r"^\$ (python manage.py .*)$", API.read_text(), re.MULTILINE)
    someone.begin("django-admin startproject mysite .", new)
    (someone.home / "shop/models.py").unlink()  # a comment and an import
    for block in blocks(API):
        if block.file:
            someone.write(block)
    assert "no issues" in someone.run("python manage.py check")
    locks = patient_nodes.settings(MAX_TTL=60, NODE_TIMEOUT=10, RESTART_GUARD=False)
    with database(POSTGRESQL) as postgresql:
        ours = f"DATABASES = {{'default': {postgresql!r}}}\nREDLOCK = {{'default': {locks!r}}}\n"
        someone.write(Block("python", "mysite/settings.py", ours))
        for command in others:
            someone.run(command, codes=HEALTH)
        someone.type(LOGIN + USE)
        someone.close_shell()
    assert someone.seen.endswith(SEEN)
