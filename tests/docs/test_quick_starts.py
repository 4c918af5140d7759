"""The quick starts are typed into a new project, and do what they say on real nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from django_redlock.testing import EmbeddedNode
from tests.docs.pages import HEALTH, ROOT, Block, Reader, blocks, examples, reader
from tests.support.databases import POSTGRESQL, database, why_not

HOW_TO = ROOT / "docs/how-to"
ONE = HOW_TO / "one-redis.md"
API = HOW_TO / "api-quick-start.md"
ADDRESS = "redis://127.0.0.1:6379/1"


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
    """No check warns, and the first lock is taken at once, in the database of the page."""
    someone.begin("django-admin startproject mysite .")
    (settings,) = [block for block in blocks(ONE) if block.file]
    assert ADDRESS in settings.text
    someone.write(settings)
    assert "no issues" in someone.run("python manage.py check")
    file = someone.home / settings.file
    ours = file.read_text().replace(ADDRESS, redis.url.rpartition("/")[0] + "/1")
    patient = "REDLOCK['default']['NODE_TIMEOUT'] = 10\n"  # a stall makes no node silent
    file.write_text(ours + patient)
    said = someone.run("python manage.py redlock_status")
    assert said.startswith("default: healthy (its node votes)")
    shell = examples(ONE)["the shell"]
    someone.type(shell)
    someone.type("lease = redlock('newsletter').acquire()")
    someone.type(shell)
    assert someone.seen == "sending\nanother process is sending it\n"
    with closing(redis.client()) as client:
        client.select(1)
        assert list(client.scan_iter("*newsletter*"))


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
