"""The examples of the page about API frameworks, in a project of its own."""

from __future__ import annotations

from tests.docs.pages import ROOT, Block, blocks, reader

PAGE = ROOT / "docs/how-to/api-frameworks.md"
SETTINGS = """\
INSTALLED_APPS += ["rest_framework", "django_redlock"]
DATABASES["default"]["ATOMIC_REQUESTS"] = True
REDLOCK = {"default": {"NODES": ["memory://a", "memory://b", "memory://c"]}}
"""
USE = """\
from django.contrib.auth.models import User
from django.test import Client
from django_redlock import redlock

client = Client(SERVER_NAME="localhost")
client.force_login(User.objects.create_user("ann"))
paths = {
    "/pay/7/": "pay:user:1:7",
    "/orders/": "create:user:1",
    "/orders/7/cancel/": "cancel:7",
    "/newsletter/": "newsletter:user:1",
    "/ninja/orders/7/pay": "pay:user:1:7",
    "/ninja/stock": "stock",
}
for address, name in paths.items():
    done = client.post(address).status_code
    with redlock(name):
        refused = client.post(address)
    detail = refused.json()["detail"]
    print(address, done, refused.status_code, refused.headers.get("Retry-After"), detail[:12])
"""


def test_the_examples_of_the_page_run(tmp_path):
    """Each request runs alone, and is answered 409 while its lock is held."""
    with reader(tmp_path, "mysite.settings") as someone:
        someone.run("django-admin startproject mysite .")
        someone.run("python manage.py startapp shop")
        someone.write(Block("python", "mysite/settings.py", SETTINGS))
        for block in blocks(PAGE):
            if block.file:
                someone.write(block)
        assert "no issues" in someone.run("python manage.py check")
        someone.run("python manage.py migrate")
        someone.type(USE)
        lines = someone.seen.splitlines()[-6:]
    statuses = [line.split()[1] for line in lines]
    assert statuses == ["200", "201", "200", "200", "200", "200"]
    answers = [" ".join(line.split()[2:]) for line in lines]
    assert answers == ["409 1 This request"] * 5 + ["409 None This request"]
