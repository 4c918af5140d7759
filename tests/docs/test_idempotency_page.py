"""The examples of "Repeated requests" run in a new project."""

from __future__ import annotations

import inspect
import re
import signal

import pytest

from django_redlock.idempotency.answers import HEADERS
from django_redlock.idempotency.decorator import Options, idempotent
from tests.docs.pages import ROOT, Block, blocks, reader, table, whole

PAGE = ROOT / "docs/how-to/idempotency.md"
SETTINGS = """\
INSTALLED_APPS += ["django_redlock", "shop"]
REDLOCK = {"default": {"NODES": ["memory://a", "memory://b", "memory://c"]}}
"""
MODELS = """\
from django.db import models


class Order(models.Model):
    article = models.IntegerField()
    customer = models.IntegerField(null=True)
"""
URLS = """\
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from shop import api, views

urlpatterns = [
    path("pay/<int:pk>/", csrf_exempt(views.pay)),
    path("apay/<int:pk>/", csrf_exempt(views.apay)),
    path("renew/<int:pk>/", csrf_exempt(views.renew)),
    path("webhook/", csrf_exempt(views.webhook)),
    path("api/<int:pk>/", api.Pay.as_view()),
]
"""
CLIENT = """\
from django.contrib.auth.models import User
from django.test import Client
from shop.models import Order
from shop.tasks import charge

client = Client(SERVER_NAME="localhost")
client.force_login(User.objects.create_user("ann"))

def sent(address, key="8e03978e-40d5-43dd-bc93-6894a57f9324", **headers):
    answer = client.post(address, headers={"Idempotency-Key": key, **headers})
    return answer.status_code, answer.content, answer.get("Idempotency-Replayed")

for address in ("/pay/7/", "/apay/7/", "/api/7/"):
    first = sent(address, address)
    assert first[0] in (200, 201), first
    assert sent(address, address) == (*first[:2], "true")
assert Order.objects.count() == 3
assert sent("/pay/8/", "/pay/7/")[0] == 422
assert client.post("/pay/7/").status_code == 400
assert client.post("/renew/7/", {"year": 2027}).json() == {"renewed": 7}
assert client.post("/renew/7/").status_code == 400
assert client.post("/webhook/").json() == {"seen": None}
assert sent("/webhook/", "k")[1] == b'{"seen": "k"}'
assert charge(5) == charge(5)
assert Order.objects.count() == 4
print("as the page says")
"""


def test_the_examples_run(tmp_path):
    """In a new project with real tables: each repetition gets the first answer."""
    with reader(tmp_path, "mysite.settings") as someone:
        someone.begin("django-admin startproject mysite .", "python manage.py startapp shop")
        for name in ("models", "views"):
            (tmp_path / f"shop/{name}.py").unlink()
        (tmp_path / "mysite/urls.py").unlink()
        for file, text in (("mysite/settings.py", SETTINGS), ("shop/models.py", MODELS)):
            someone.write(Block("python", file, text))
        someone.write(Block("python", "mysite/urls.py", URLS))
        for block in blocks(PAGE):
            if block.file:
                someone.write(block)
        someone.manage("makemigrations shop")
        for command in re.findall(r"^\$ python manage.py (.*)$", PAGE.read_text(), re.MULTILINE):
            printed = someone.manage(command)
        assert printed == "No record has expired.\n"
        someone.type(CLIENT)
        assert someone.seen == "as the page says\n"


SENDING = """\
import os, signal, sys
from functools import partial
from pathlib import Path

from django.db import transaction
from django.http import HttpResponse
from django_redlock.idempotency import idempotent
from shop.models import Order

PLACE, DIES = sys.argv[-2:]

def die_if(where):
    if where == DIES:
        os.kill(os.getpid(), signal.SIGKILL)

def send():
    with Path("sent").open("a") as file:
        file.write("a mail\\n")

@idempotent(scope=lambda request: "ann")
def pay(request):
    Order.objects.create(article=7)  # a row that says what is to be done, too
    if PLACE == "in_the_view":
        send()
        die_if("before_commit")
    else:
        transaction.on_commit(partial(die_if, "after_commit"))
        transaction.on_commit(send)
    return HttpResponse("paid")
"""
SENT = """\
import django
django.setup()

from django.test import RequestFactory
from shop.sending import pay

headers = {"Idempotency-Key": "8e03978e-40d5-43dd-bc93-6894a57f9324"}
assert pay(RequestFactory().post("/", headers=headers)).content == b"paid"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "dies", "sent"),
    [("in_the_view", "before_commit", 2), ("on_commit", "after_commit", 0)],
)
def test_outside_work_is_done_at_least_or_at_most_once(tmp_path, place, dies, sent):
    """A killed process, then the repetition: the order is there once, the mail twice or never."""
    with reader(tmp_path, "mysite.settings") as someone:
        someone.begin("django-admin startproject mysite .", "python manage.py startapp shop")
        (tmp_path / "shop/models.py").unlink()
        settings = f'{SETTINGS}INSTALLED_APPS += ["django_redlock.idempotency"]\n'
        files = {"mysite/settings.py": settings, "shop/models.py": MODELS}
        for file, text in (files | {"shop/sending.py": SENDING, "sent.py": SENT}).items():
            someone.write(Block("python", file, text))
        someone.manage("makemigrations shop")
        someone.manage("migrate")
        someone.run(f"python sent.py {place} {dies}", codes=(-signal.SIGKILL,))
        someone.run(f"python sent.py {place} nowhere")
        someone.type("from shop.models import Order; print(Order.objects.count())")
        assert someone.seen == "1\n"
        mails = tmp_path / "sent"
        assert (mails.read_text().count("a mail") if mails.exists() else 0) == sent


def test_the_options_of_the_table_are_those_of_the_decorator():
    """Each option of the table is one, with the default that the table shows."""
    page = table("docs/how-to/idempotency.md", "Option")
    shown = {each: row[1] for row in page.rows for each in re.findall(r"`(\w+)`", row[0])}
    assert shown.keys() <= Options.__annotations__.keys()
    defaults = {
        name: each.default for name, each in inspect.signature(idempotent).parameters.items()
    }
    assert shown["required"] == f"`{defaults['required']}`"
    assert shown["store_body"] == f"`{defaults['store_body']}`"
    assert shown["wait"] == f"{defaults['wait']:.0f} s"
    assert shown["on_unavailable"] == f'`"{defaults["on_unavailable"]}"`'
    assert defaults["keep"].days == 1
    assert f"`max_body` ({defaults['max_body'] // 2**20} MiB)" in PAGE.read_text()


def test_the_reference_names_the_headers():
    """All that are stored by default."""
    text = whole(ROOT / "docs/reference/options.md")
    assert [each for each in HEADERS if f'"{each}"' not in text] == []
