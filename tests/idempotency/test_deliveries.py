"""The task of docs/how-to/idempotency.md in a real worker, to which a broker delivers it twice."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from django_redlock.testing import EmbeddedNode, EmbeddedNodes
from tests.celery.site import end
from tests.docs.pages import ROOT, blocks
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow  # it starts workers
LONG = 90.0  # seconds for what takes some on a machine that has the time
(TASKS,) = (
    each.text
    for each in blocks(ROOT / "docs/how-to/idempotency.md")
    if each.file == "shop/tasks.py"
)
MODELS = """\
from pathlib import Path

from django.db import models

from tests.support.waiting import eventually


class Order(models.Model):
    article = models.IntegerField()
    customer = models.IntegerField()

    def save(self, *args, **kwargs):
        super().save(*args, **kwargs)
        Path("begun").touch()
        eventually(Path("go").exists, within=300)

    class Meta:
        app_label = "shop"
"""
SITE = """\
import json
import os

import django
from celery import Celery
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["django_redlock", "django_redlock.idempotency", "shop"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3"}},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
    REDLOCK={"default": json.loads(os.environ["TEST_LOCKS"])},
)
django.setup()
app = Celery("site", broker=os.environ["TEST_BROKER"], backend=os.environ["TEST_BROKER"])
app.conf.broker_connection_retry_on_startup = True
import shop.tasks
"""


class Shop:
    """A shop with one task, its worker, and a client that reads its result."""

    def __init__(self, home: Path, app: Celery) -> None:
        self.home = home
        self.app = app
        self.result: Any = app.AsyncResult("one-id")

    def deliver(self) -> None:
        """Send the message; each has the same id, as what a broker delivers again."""
        self.app.send_task("shop.tasks.charge", (5,), task_id="one-id")

    def begun(self) -> None:
        """Wait until a delivery is at work."""
        eventually((self.home / "begun").exists, within=LONG)

    def go_on(self) -> None:
        """Let it end."""
        (self.home / "go").touch()

    def said(self, text: str, times: int = 1) -> None:
        """Wait until the worker has said something so often."""
        log = self.home / "worker.log"
        eventually(
            lambda: log.read_text().count(text) >= times, within=LONG, every=0.05, what=str(log)
        )

    def orders(self) -> list[int]:
        """The orders that were made."""
        with closing(sqlite3.connect(self.home / "shop.sqlite3")) as opened:
            return [number for (number,) in opened.execute("SELECT id FROM shop_order")]


@pytest.fixture
def opened(patient_nodes: EmbeddedNodes, tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """Opens a shop with this source of its tasks, until the test ends."""
    with ExitStack() as stack:
        broker = EmbeddedNode()
        stack.callback(broker.close)
        broker.start()
        locks = patient_nodes.settings(MAX_TTL=60, NODE_TIMEOUT=10, RESTART_GUARD=False)
        more = {"TEST_LOCKS": json.dumps(locks), "TEST_BROKER": broker.url}
        env = os.environ | more | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
        yield lambda tasks: stack.enter_context(shop(tmp_path, env, tasks))


@contextmanager
def shop(home: Path, env: dict[str, str], tasks: str) -> Iterator[Shop]:
    """A shop in an empty folder."""
    (home / "shop").mkdir()
    for name, text in (("__init__", ""), ("models", MODELS), ("tasks", tasks)):
        (home / f"shop/{name}.py").write_text(text)
    (home / "site_of_shop.py").write_text(SITE)
    tables = "import site_of_shop; from django.core.management import call_command as call; "
    tables += "call('migrate', run_syncdb=True, verbosity=0)"
    subprocess.run([sys.executable, "-c", tables], cwd=home, env=env, check=True)
    words = "celery -A site_of_shop worker -c 2 -l INFO --prefetch-multiplier 1 --without-gossip"
    with (home / "worker.log").open("wb") as out:
        worker = subprocess.Popen(
            [sys.executable, "-m", *words.split(), "--without-mingle"],
            cwd=home,
            env=env,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    app = Celery(set_as_current=False, broker=env["TEST_BROKER"], backend=env["TEST_BROKER"])
    made = Shop(home, app)
    try:
        made.said(" ready.")
        yield made
    finally:
        app.close()
        made.go_on()
        end(worker)


def test_a_second_delivery_returns_the_result_of_the_first(opened):
    """It waits, comes back when it has waited for long, and takes away nobody's result."""
    made = opened(TASKS)
    made.deliver()
    made.begun()
    made.deliver()
    made.said("retry: Retry in")
    made.said("lock refused: alias='default' name='idempotency:charge:5'")
    made.go_on()
    assert made.result.get(timeout=LONG) == {"order": 1}
    made.said("succeeded in", times=2)
    assert (made.result.state, made.result.get(timeout=LONG)) == ("SUCCESS", {"order": 1})
    assert made.orders() == [1]
