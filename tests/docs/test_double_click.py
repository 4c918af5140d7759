"""Two clicks on the views of the README and of the page of views, at a real server: one runs."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.docs.pages import (
    README,
    ROOT,
    TESTING,
    Reader,
    blocks,
    follow,
    make_tables,
    reader,
)
from tests.support.waiting import eventually

VIEWS = ROOT / "docs/how-to/views.md"
PAUSES = [0.08, 0.2, 0.3]  # seconds between the two clicks
LONG = 60.0
ADDRESS = re.compile(r"Listening at: (http://\S+)")
URLS = """\
from types import SimpleNamespace

from django.http import HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from billing.checkout import checkout
from billing.models import Invoice
from billing.views import pay


@csrf_exempt
def click(request, pk):
    if request.method == "GET":
        return HttpResponse(str(Invoice.objects.get_or_create(pk=pk)[0].total))
    request.user = SimpleNamespace(pk=7, is_authenticated=True)
    return pay(request, pk) if request.path.startswith("/pay") else checkout(request)


urlpatterns = [path("pay/<int:pk>", click), path("checkout/<int:pk>", click)]
"""


@contextmanager
def serving(someone: Reader) -> Iterator[str]:
    """Serve the project, by the threads of one process; yields its address."""
    log = someone.home / "gunicorn.log"
    command = [str(Path(sys.executable).with_name("gunicorn")), "--threads", "4", "mysite.wsgi"]
    with log.open("wb") as out, ExitStack() as stack:
        server = subprocess.Popen(
            [*command, "--bind", "127.0.0.1:0"],
            cwd=someone.home,
            env=someone.environment,
            stdout=out,
            stderr=out,
        )
        stack.callback(server.wait, 15)
        stack.callback(server.terminate)
        found = eventually(lambda: ADDRESS.findall(log.read_text()), within=LONG)
        yield found[0]


def click(address: str) -> int:
    """Post; the status."""
    try:
        with urlopen(Request(address, data=b""), timeout=LONG) as answer:  # noqa: S310 - our own
            return int(answer.status)
    except HTTPError as refused:
        return refused.code


def total(address: str) -> int:
    """What was paid."""
    with urlopen(address, timeout=LONG) as answer:  # noqa: S310 - our own server
        return int(answer.read())


def clicked(home: Path, view: str, left_out: str = "") -> list[tuple[list[int], int]]:
    """Do as the pages say, but leave something out; click twice with each pause: statuses, total.

    The view is ``pay`` of the README, or ``checkout``, with which the page of views begins.
    """
    with reader(home, "mysite.test_settings") as someone:
        follow(someone, README)
        follow(someone, TESTING)
        make_tables(someone)
        (home / "mysite/urls.py").write_text(URLS)
        (home / "billing/checkout.py").write_text(blocks(VIEWS)[0].text)
        for file in ("views.py", "checkout.py"):
            written = (home / "billing" / file).read_text()
            (home / "billing" / file).write_text(written.replace(left_out, ""))
        with serving(someone) as address, ThreadPoolExecutor(2) as threads:
            found = []
            for number, pause in enumerate(PAUSES, start=1):
                target = f"{address}/{view}/{number}"
                assert total(target) == 0
                first = threads.submit(click, target)
                time.sleep(pause)
                second = threads.submit(click, target)
                found.append(([first.result(), second.result()], total(target)))
            return found


@pytest.mark.slow
def test_a_double_click_pays_once(tmp_path):
    """Also when the first request is answered before the second one comes."""
    assert clicked(tmp_path, "pay") == [([200, 409], 100)] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("view", "left_out", "total"), [("pay", ", min_hold=3", 200), ("checkout", "(min_hold=3)", 0)]
)
def test_a_double_click_runs_twice_without_min_hold(tmp_path, view, left_out, total):
    """The check can fail."""
    assert ([200, 200], total) in clicked(tmp_path, view, left_out)
