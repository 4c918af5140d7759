"""The example project on nodes in memory: forms, exports, reports, tasks, and the code it shows."""

from __future__ import annotations

import html
import re
import socket
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_redlock import conf, redlock
from example_project.box_office import again, tasks
from example_project.box_office.models import Order, Refusal, Report, Run, Show
from tests.example.conftest import visitor
from tests.example.test_example import as_told, filled_in

from .running_demo import ROOT
from .test_seats import let_leases_expire

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("nodes")]


def test_a_form_that_is_sent_again_later_orders_nothing(show, nodes):
    """As by a reload, when the lock is long free: the token tells it; that of others does not."""
    ada, grace, form = visitor(), visitor(), filled_in(show)
    assert ada.post("/order/", form).status_code == 302
    let_leases_expire(nodes)
    assert ada.post("/order/", form).status_code == 409
    assert as_told(show) == (1, 2)
    assert grace.post("/order/", form).status_code == 302
    assert as_told(show) == (2, 4)


@pytest.mark.parametrize("path", ["/order/", "/order-unlocked/"])
@pytest.mark.parametrize("token", ["", "x", "<script>alert(1)</script>", "' OR 1=1 --", "\0"])
def test_a_hostile_token_orders_nothing(show, path, token):
    """Whatever is sent instead of a token is no error, and no markup."""
    page = visitor().post(path, filled_in(show, click=token))
    assert page.status_code == 422
    assert "<script>alert" not in page.text
    assert as_told(show) == (0, 0)


def test_a_visitor_is_told_of_no_others_orders(show):
    """They order at the same time; others' orders are in the numbers, and nowhere else."""
    ada, grace = visitor(), visitor()
    assert ada.post("/order/", filled_in(show)).status_code == 302
    assert "Ada" not in grace.get("/").text
    assert grace.post("/order/", filled_in(show, name="Grace")).status_code == 302
    page = ada.post("/order/", filled_in(show)).text
    assert "Your order is being taken" in page
    assert "Grace" not in page
    assert "2 orders, <strong>0 too many</strong>" in page


def test_without_a_majority_nothing_is_sold(show, nodes):
    """Nobody can tell whether the same order is being taken: 503, and no order with the lock."""
    client = visitor()
    nodes.down = {0, 1, 2}
    page = client.post("/order/", filled_in(show))
    assert page.status_code == 503
    assert "Nothing has happened" in page.text
    assert as_told(show) == (0, 0)
    assert [each.status for each in Refusal.objects.all()] == [503]
    assert client.post("/order-unlocked/", filled_in(show)).status_code == 302


def test_an_order_needs_the_form_of_the_site(show):
    """A POST without the CSRF token is refused, and so is a GET."""
    strict = Client(enforce_csrf_checks=True)
    assert strict.post("/order/", filled_in(show)).status_code == 403
    assert strict.get("/order/").status_code == 405
    assert as_told(show) == (0, 0)


def test_the_export_runs_once_at_a_time(show):
    """As long as one is being sent, a second is refused, and pages say so."""
    client, path = visitor(), f"/shows/{show.pk}/orders.csv"
    sending = client.get(path)
    refused = visitor().get(path)
    assert (refused.status_code, "perhaps for somebody else" in refused.text) == (409, True)
    assert "The orders are being exported" in client.get(show.get_absolute_url()).text
    sending.close()
    assert "Nobody exports the orders" in client.get(show.get_absolute_url()).text
    again = visitor().get(path)
    assert again.status_code == 200
    again.close()


def test_a_report_counts_what_was_sold(show):
    """The task writes down how many orders and seats there are; the page shows the last report."""
    Order.objects.create(show=show, name="Ada", seats=3)
    Order.objects.create(show=Show.objects.create(title="Another"), name="Ada", seats=4)
    tasks.build_report(show.pk)
    report = Report.objects.get()
    assert (report.orders, report.seats) == (1, 3)
    assert "counted 1 order" in visitor().get(show.get_absolute_url()).text


def test_who_holds_a_lock_is_for_staff(show):
    """A holder's label names hosts and processes: staff sees it, no customer does."""
    customer, member, staff = visitor(), visitor(), visitor()
    member.force_login(User.objects.create_user("member"))
    staff.force_login(User.objects.create_user("staff", is_staff=True))
    label = conf.backend("default").label()
    with redlock(show.report_lock), redlock(show.export_lock):
        for client, times in [(customer, 0), (member, 0), (staff, 2)]:
            page = client.get(show.get_absolute_url()).text
            assert "The report is being built" in page
            assert "The orders are being exported" in page
            assert page.count(label) == times
        refused = customer.get(f"/shows/{show.pk}/orders.csv")
        assert refused.status_code == 409
        assert socket.gethostname() not in refused.text


def test_who_asked_for_a_report_is_told_what_became_of_it(show, queue, results):
    """Also that it was skipped; nobody else is."""
    ada, path = visitor(), show.get_absolute_url()
    for _ in range(4):
        ada.post(f"{path}report/")
    ids = [task_id for _, task_id in ada.session["reports"]]
    assert as_asked(ada, path) == 4 * ["not built yet"]
    with redlock(show.report_lock):
        skipped = tasks.build_report(show.pk)
    assert skipped["skipped"] is True
    assert not Report.objects.exists()
    states = [("SUCCESS", 7), ("SUCCESS", skipped), ("FAILURE", ValueError("no"))]
    for task_id, (state, result) in zip(ids, states, strict=False):
        results.store_result(task_id, result, state)
    told = ["built", "skipped: another one was being built", "failed", "not built yet"]
    assert as_asked(ada, path) == told
    other = Show.objects.create(title="Another").get_absolute_url()
    assert as_asked(visitor(), path) == as_asked(ada, other) == []


def as_asked(client: Client, path: str) -> list[str]:
    """What the page says of the reports that this visitor has asked for, the newest first."""
    page = client.get(path).text
    return re.findall(r"Your report \d+</span> <strong>(.*?)</strong>", page)


def test_names_are_text(show):
    """What somebody calls himself is no markup."""
    Order.objects.create(show=show, name="<b>Ada</b>")
    assert "&lt;b&gt;Ada&lt;/b&gt;" in visitor().get(show.get_absolute_url()).text


@pytest.mark.usefixtures("results")
@pytest.mark.parametrize(("down", "sent"), [(set(), 1), ({0, 1, 2}, 20)])
def test_of_20_calls_one_message_is_sent(show, queue, nodes, down, sent):
    """Without a majority nobody can tell which ones are duplicates, and all 20 are sent."""
    client = visitor()
    nodes.down = down
    page = client.post(f"/shows/{show.pk}/tasks/copies/", follow=True).text
    assert f"Called 20 times: {sent} sent, {20 - sent} duplicates." in page
    assert queue.qsize() == sent
    assert queue.get(timeout=1).headers["id"] in page


def test_only_a_run_that_is_at_work_is_killed(show, results):
    """The button marks it, and the process that runs it obeys; one that has ended is no aim."""
    client, path = visitor(), f"/shows/{show.pk}/tasks/kill/"
    assert "Nothing was killed." in client.post(path, follow=True).text
    common = {"show": show, "task": tasks.rehearse.name, "task_id": "one"}
    first = Run.objects.create(pid=11, fence=3, **common)
    assert "Process 11 is killed." in client.post(path, follow=True).text
    first.refresh_from_db()
    assert first.killed
    second = Run.objects.create(pid=12, fence=4, ended=first.killed, **common)
    assert "Nothing was killed." in client.post(path, follow=True).text
    assert second.late() == (second.began - first.killed).total_seconds()


def with_its_key(client: Client, show: Show, **fields: str) -> dict[str, str]:
    """A form of the page with trials, with the key that it brings."""
    page = client.get(f"/shows/{show.pk}/again/")
    assert "no-store" not in page.get("Cache-Control", "")  # after Back it has the same key
    (key,) = re.findall(r'name="idempotency_key" value="(.+?)"', page.text)
    return {"idempotency_key": key, "name": "Ada", **fields}


def test_a_form_that_is_sent_again_gets_its_first_answer(show):
    """Byte for byte, with one order; with another content, or without a key, it is refused."""
    client, path = visitor(), f"/shows/{show.pk}/again/buy/"
    form = with_its_key(client, show)
    first, second = client.post(path, form), client.post(path, form)
    assert (first.status_code, second.status_code) == (200, 200)
    assert first.content == second.content
    assert second["Idempotency-Replayed"] == "true"
    assert as_told(show) == (1, 1)
    assert client.post(path, form | {"name": "Grace"}).status_code == 422
    assert client.post(path, {"name": "Ada"}).status_code == 400
    assert as_told(show) == (1, 1)
    assert client.post(path, with_its_key(client, show)).status_code == 200
    assert as_told(show) == (2, 2)
    assert "for Ada" in client.get(f"/shows/{show.pk}/again/").text
    assert "for Ada" not in visitor().get(f"/shows/{show.pk}/again/").text


def test_a_form_with_a_mistake_comes_back_with_another_key(show):
    """So that it can be corrected and sent."""
    client, path = visitor(), f"/shows/{show.pk}/again/buy/"
    form = with_its_key(client, show, name="")
    page = client.post(path, form)
    assert page.status_code == 422
    assert "This field is required." in page.text
    assert form["idempotency_key"] not in page.text
    assert as_told(show) == (0, 0)


def test_the_page_says_how_the_job_ended_on_each_server(show, monkeypatch):
    """By the exit statuses of `redlock_run`; holders are for staff, so nothing else is shown."""
    ended = iter([SimpleNamespace(wait=lambda: 0), SimpleNamespace(wait=lambda: 75)])
    processes = SimpleNamespace(Popen=lambda *_, **__: next(ended), DEVNULL=None)
    monkeypatch.setattr(again, "subprocess", processes)
    page = visitor().post(f"/shows/{show.pk}/again/job/", follow=True).text
    assert "Server 1 ran the job" in page
    assert "Server 2 did nothing: the other one has the lock" in page


def test_the_pages_show_the_code_of_the_files(show, queue, results, settings, tmp_path):
    """Line by line, from the line that is named: of an order the lock, of a button what it does."""
    settings.DEMO_SWITCH = str(tmp_path / "switch")
    path = show.get_absolute_url()
    paths = ("/", path, f"{path}tasks/", f"{path}again/")
    pages = "".join(visitor().get(path).text for path in paths)
    block = r'<p class="hint">([\w/.]+), line (\d+)</p>\s*<pre><code>(.*?)</code></pre>'
    found = re.findall(block, pages, re.DOTALL)
    for file, line, text in found:
        lines = (ROOT / file).read_text().splitlines()[int(line) - 1 :]
        here = html.unescape(text).splitlines()
        assert here == lines[: len(here)]
    shown = html.unescape("".join(text for *_, text in found))
    for words in ("@single_flight(", "@locked_task(", "with redlock(", "nodes.kill(", "SIGKILL"):
        assert words in shown
    for words in ("@idempotent", "redlock_run", "lease.ensure()"):
        assert words in shown
