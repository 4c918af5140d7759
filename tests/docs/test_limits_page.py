"""The examples of "Up to k at once, once a day, one leader" run as they are pasted."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT, Block, blocks, examples, reader

PAGE = ROOT / "docs/how-to/limits-once-leader.md"
SETTINGS = """\
INSTALLED_APPS += ["shop", "django_redlock"]
REDLOCK = {"default": {"NODES": ["memory://a", "memory://b", "memory://c"]}}
"""
LEADER = """\
import sys, threading, types
sys.path.insert(0, ".")
from shop import beat

stepped, said = threading.Event(), []
beat.print = lambda step: (said.append(step), stepped.set())
conf = {}
exec(open("gunicorn.conf.py").read(), conf)
worker = types.SimpleNamespace()
conf["post_worker_init"](worker)
led = stepped.wait(60) and redlock.leads("beat")
conf["worker_exit"](None, worker)
print(led, redlock.leads("beat"), *said, redlock("beat").try_acquire() is not None)
"""


def test_the_examples_of_the_page_run(tmp_path):
    """A slot, a day's work that is done once, and a worker of gunicorn that leads."""
    with reader(tmp_path, "mysite.settings") as someone:
        someone.begin("django-admin startproject mysite .", "python manage.py startapp shop")
        someone.write(Block("python", "mysite/settings.py", SETTINGS))
        for block in blocks(PAGE):
            if block.file:
                someone.write(block)
        someone.type(examples(PAGE)["the shell"])
        said = someone.seen.splitlines()
        assert said[0] == "one of five"
        assert re.fullmatch(r"in slot [0-4]; 1 of 5", said[1])
        assert said[2] == "the report is sent"
        assert said[3].startswith("it was sent at ")
        assert said[4] == "sent to 7 None"
        someone.type(LEADER)
        assert someone.seen.endswith("True False one step True\n")
