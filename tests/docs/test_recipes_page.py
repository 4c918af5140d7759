"""The recipes run as they are pasted, in a project of its own."""

from __future__ import annotations

import django

from tests.docs.pages import ROOT, Block, blocks, reader

PAGE = ROOT / "docs/how-to/recipes.md"
SETTINGS = """\
INSTALLED_APPS += ["shop", "django_redlock"]
ALLOWED_HOSTS = ["localhost"]
REDLOCK = {"default": {"NODES": ["memory://a", "memory://b", "memory://c"]}}
"""
COMMAND = """\
import io
from django.core.management import CommandError, call_command
from django.test.utils import override_settings
from django_redlock import redlock
from django_redlock.testing import unavailable

def run():
    out = io.StringIO()
    call_command("send_reminders", stdout=out)
    return out.getvalue().strip()

print(run().split()[0], "|", run().rpartition(": ")[2])
with redlock("migrate"), unavailable():
    try:
        run()
    except CommandError as error:
        print(type(error).__name__)
"""
VIEW = """\
import asyncio
from django.test import AsyncRequestFactory
from shop.views import start

async def twice():
    ask = lambda: start(AsyncRequestFactory().post("/"), pk=7)
    return [answer.status_code for answer in await asyncio.gather(ask(), ask())]

print(sorted(asyncio.run(twice())))
"""
TASK = """\
from shop.tasks import build_report
from django_redlock import redlock
with redlock("report:2026"):
    print(build_report.enqueue(2026).return_value)
print(build_report.enqueue(2026).return_value[:18])
"""

LEADER = """\
import sys, threading, types
sys.path.insert(0, ".")
from django_redlock import redlock
from shop import beat

stepped = threading.Event()
beat.print = lambda *_: stepped.set()
conf = {}
exec(open("gunicorn.conf.py").read(), conf)
worker = types.SimpleNamespace()
conf["post_worker_init"](worker)
led = stepped.wait(60) and redlock.leads("beat")
conf["worker_exit"](None, worker)
print(led, redlock.leads("beat"), beat.over.is_set(), redlock("beat").try_acquire() is not None)
"""
DEBOUNCE = """\
from types import SimpleNamespace
from celery import Celery
from celery.signals import after_task_publish
app, sent = Celery(broker="memory://"), []
after_task_publish.connect(lambda **_: sent.append(1), weak=False)
from shop.search import saved
for _ in range(3):
    saved(None, SimpleNamespace(pk=7))
print(len(sent), "message")
"""
JOB = """\
from shop.jobs import build_report
print(build_report(2026)[:18])
"""


def test_the_recipes_run(tmp_path):
    """A command that another machine runs ends quietly; of two equal requests one runs."""
    with reader(tmp_path, "mysite.settings") as someone:
        someone.begin("django-admin startproject mysite .", "python manage.py startapp shop")
        someone.write(Block("python", "mysite/settings.py", SETTINGS))
        for folder in ("management", "management/commands"):
            (someone.home / "shop" / folder).mkdir()
            (someone.home / "shop" / folder / "__init__.py").touch()
        for block in blocks(PAGE):
            if block.file != "shop/tasks.py":
                (someone.home / block.file).write_text(block.text)
        someone.type(COMMAND)
        assert someone.seen.endswith("sent | nothing is done here\nCommandError\n")
        someone.type(VIEW)
        assert someone.seen.endswith("[200, 409]\n")
        someone.type(LEADER)
        assert someone.seen.endswith("True False True True\n")
        someone.type(DEBOUNCE)
        assert someone.seen.endswith("1 message\n")
        someone.type(JOB)
        assert someone.seen.endswith("the report of 2026\n")
        if django.VERSION < (6, 0):
            return
        (tasks,) = [block for block in blocks(PAGE) if block.file == "shop/tasks.py"]
        (someone.home / tasks.file).write_text(tasks.text)
        someone.type(TASK)
        assert someone.seen.endswith("another worker is at it\nthe report of 2026\n")
