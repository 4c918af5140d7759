"""The first page of the example: forms, orders and nodes as the page tells them."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.utils import timezone

from example_project.box_office.models import Order

from .test_seats import let_leases_expire
from .visitors import visitor

pytestmark = [pytest.mark.nightly, pytest.mark.django_db, pytest.mark.usefixtures("nodes", "show")]
HOSTILE = [
    "x",
    "<script>alert(1)</script>",
    "' OR 1=1 --",
    "\0",
    "\N{BELL}" * 5000,
    "{00000000-0000-0000-0000-00000000000g}",
]


def forms(page: str) -> dict[str, dict[str, str]]:
    """The forms that order, by where they are sent, with their hidden fields."""
    return {
        action: dict(re.findall(r'type="hidden" name="(click|back)" value="([^"]*)"', body))
        for action, body in re.findall(
            r'<form method="post" action="([^"]+)">(.*?)</form>', page, re.DOTALL
        )
    }


def fill_in(client: Client, path: str, **fields: str) -> tuple[str, dict[str, str]]:
    """Open the first page, and fill in the form that is sent to a path with this end."""
    found = forms(client.get("/").text)
    (action,) = (each for each in found if each.endswith(f"/{path}/"))
    return action, {"name": "Ada", "seats": "2"} | found[action] | fields


def part(page: str, name: str) -> str:
    """The text of an element with an id."""
    found = re.search(rf'<(\w+) id="{name}".*?</\1>', page, re.DOTALL)
    assert found
    return " ".join(re.sub(r"<[^>]+>", " ", found[0]).split())


@pytest.mark.parametrize(("path", "told"), [("order", "once"), ("order-unlocked", "twice")])
def test_an_order_leads_back_to_the_first_page(path, told):
    """There it is shown in the list of its side; without the lock a form may order twice."""
    client = visitor()
    action, fields = fill_in(client, path)
    answer = client.post(action, fields, follow=True)
    assert answer.redirect_chain == [("/", 302)]
    client.post(action, fields)
    page = client.get("/").text
    side, other = ("with", "without") if path == "order" else ("without", "with")
    assert re.search(
        rf"2 seats for Ada, The Seagull .* ordered {told}$", part(page, f"mine-{side}")
    )
    assert part(page, f"mine-{other}") == "You have ordered nothing here yet."
    orders = {"once": "1 order, 0", "twice": "2 orders, 1"}[told]
    assert f"1 form sent, {orders} too many" in part(page, f"all-{side}")
    assert page.count('<li class="odd"><span>2 seats') == (told == "twice")


def test_the_first_page_tells_a_visitor_of_no_others_orders():
    """Other visitors' orders are in the numbers, and nowhere else."""
    ada, grace = visitor(), visitor()
    action, fields = fill_in(ada, "order")
    assert ada.post(action, fields).status_code == 302
    page = grace.get("/").text
    assert "Ada" not in page
    assert "1 form sent, 1 order, 0 too many" in part(page, "all-with")


def test_a_refused_customer_sees_the_order_of_the_first_click():
    """The refusal shows what the first click has ordered, and the page of the form as well."""
    ada, grace = visitor(), visitor()
    action, fields = fill_in(ada, "order")
    where = f"/orders/{fields['click']}/"
    assert "No order of your form has been taken yet." in ada.get(where).text
    assert ada.post(action, fields).status_code == 302
    page = ada.post(action, fields)
    assert (page.status_code, page["Cache-Control"]) == (409, "no-store")
    at = timezone.localtime(Order.objects.get().at)
    told = f"Your order: 2 seats for Ada, The Seagull, taken at {at:%H:%M:%S} ."
    assert part(page.text, "wish") == part(ada.get(where).text, "wish") == told
    assert '<a href="/">Back to the box office</a>' in page.text
    assert "data-every" not in page.text  # nothing is awaited any more
    assert "Ada" not in grace.get(where).text
    problem = ada.post(action, fields, headers={"accept": "application/json"})
    assert (problem.status_code, problem["Content-Type"]) == (409, "application/problem+json")
    assert Order.objects.count() == 1


def test_while_the_first_click_is_at_work_the_refusal_looks_again(show):
    """By a script, or by a page that loads itself anew where scripts are off."""
    client = visitor()
    action, fields = fill_in(client, "order")
    assert client.post(action, fields).status_code == 302
    Order.objects.all().delete()  # as if it was not there yet
    page = client.post(action, fields).text
    where = f"/orders/{fields['click']}/"
    assert f'<span data-every="500" data-at="{where}">' in page
    assert f'<noscript><meta http-equiv="refresh" content="1; url={where}"></noscript>' in page
    assert '<noscript><meta http-equiv="refresh" content="1"></noscript>' in client.get(where).text


def test_a_form_that_is_sent_again_later_orders_nothing(nodes):
    """As by a reload, when the lock is long free: the token tells it."""
    client = visitor()
    action, fields = fill_in(client, "order")
    assert client.post(action, fields).status_code == 302
    let_leases_expire(nodes)
    page = client.post(action, fields)
    assert Order.objects.count() == 1
    assert (page.status_code, "Your order: 2 seats" in page.text) == (409, True)
    let_leases_expire(nodes)
    bare = client.post(action, fields, headers={"accept": "application/json"})
    assert (bare.status_code, bare.text) == (409, "")


def test_a_token_of_somebody_else_keeps_nobody_from_ordering():
    """A token is a visitor's own: with the same one another visitor orders, once."""
    ada, grace = visitor(), visitor()
    action, fields = fill_in(ada, "order")
    assert [each.post(action, fields).status_code for each in (ada, grace)] == [302, 302]
    assert part(grace.get("/").text, "mine-with").endswith("ordered once")


@pytest.mark.parametrize("token", HOSTILE)
@pytest.mark.parametrize("path", ["order", "order-unlocked"])
def test_a_hostile_token_counts_as_none(path, token):
    """Whatever is sent instead of a token is not kept, not shown as markup, and no error."""
    client = visitor()
    action, fields = fill_in(client, path, click=token)
    answers = [client.post(action, fields), client.post(action, fields | {"seats": "99"})]
    assert [each.status_code for each in answers] == [302, 409 if path == "order" else 422]
    assert "<script>alert" not in answers[1].text
    assert [order.click for order in Order.objects.all()] == [None]


@pytest.mark.parametrize("back", ["//evil.example/", "https://evil.example/", "admin:index"])
def test_a_hostile_way_back_leads_to_the_show(show, back):
    """Only the first page is another way back."""
    client = visitor()
    action, fields = fill_in(client, "order", back=back)
    assert client.post(action, fields)["Location"] == show.get_absolute_url()
    page = client.post(action, fields)
    assert f'<a href="{show.get_absolute_url()}">Back to the show</a>' in page.text


def test_without_a_majority_the_refusal_says_so_plainly(nodes):
    """503 and plain words with the lock; without it the order is taken."""
    client = visitor()
    action, fields = fill_in(client, "order")
    nodes.down = {0, 1, 2}
    page = client.post(action, fields)
    assert page.status_code == 503
    for words in ("Nothing has happened.", "Too few of the nodes", "Back to the box office"):
        assert words in page.text
    assert not Order.objects.exists()
    assert client.post(*fill_in(client, "order-unlocked")).status_code == 302
