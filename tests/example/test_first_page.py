"""The first page of the example: forms, orders and nodes as the page tells them."""

from __future__ import annotations

import re
import uuid

import pytest
from django.test import Client
from django.utils import timezone

from django_redlock.nodes.memory import MemoryNodes
from example_project.box_office import story
from example_project.box_office.models import Order, Refusal, Show

from .test_seats import let_leases_expire
from .visitors import BROWSER, visitor

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("nodes", "show")]
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


def test_both_forms_are_there_and_each_is_a_new_one():
    """Each form of each page has a token of its own, and no browser may keep the page."""
    client = visitor()
    pages = [client.get("/") for _ in range(2)]
    found = [forms(page.text) for page in pages]
    tokens = {form["click"] for page in found for form in page.values()}
    assert [path.split("/")[-2] for path in found[0]] == ["order", "order-unlocked"]
    assert len({uuid.UUID(token) for token in tokens}) == 4
    assert {form["back"] for page in found for form in page.values()} == {"index"}
    assert "no-store" in pages[0]["Cache-Control"]


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


def test_refused_clicks_are_counted(nodes):
    """Those that came twice and those without a majority apart; a visitor's own among all."""
    ada, grace = visitor(), visitor()
    action, fields = fill_in(ada, "order")
    for client in (ada, ada, ada, grace, grace):
        client.post(action, fields)
    nodes.down = {0, 1, 2}
    ada.post(action, fields, headers={"accept": "application/json"})
    nodes.down = set()
    for client, mine in [(ada, "2 and 1"), (grace, "1 and 0"), (visitor(), "0 and 0")]:
        told = part(client.get("/").text, "all-with")
        assert "Clicks refused: 3 because the same order" in told
        assert "(409), 1 because no majority" in told
        assert told.endswith(f"Yours among them: {mine} .".replace(" .", "."))
    assert "; 2 more clicks refused ordered once" in part(ada.get("/").text, "mine-with")
    assert part(ada.get("/").text, "all-without").endswith("Nothing keeps two of them apart.")
    assert sorted(Refusal.objects.values_list("status", flat=True)) == [409, 409, 409, 503]


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


@pytest.mark.parametrize(("path", "mine"), [("order", "with"), ("order-unlocked", "without")])
def test_a_form_that_is_wrong_is_shown_where_it_is(path, mine):
    """The first page has what was typed, and what is wrong, in that form and not in the other."""
    client = visitor()
    action, fields = fill_in(client, path, name="Grace", seats="99")
    page = client.post(action, fields)
    assert page.status_code == 422
    assert page.text.count('class="error"') == 1
    assert re.findall(r'value="Grace"[^>]* id="(\w+)"', page.text) == [f"{mine}_name"]
    assert re.findall(r'value="99"[^>]* id="(\w+)"', page.text) == [f"{mine}_seats"]
    assert not Order.objects.exists()


def test_the_parts_that_change_have_no_form():
    """A form that is replaced would lose what is half-typed; all else has an element to replace."""
    client = visitor()
    page, parts = client.get("/").text, client.get("/now/").text
    ids = re.compile(r'id="([\w-]+)"[^>]* data-live')
    assert set(ids.findall(parts)) == set(ids.findall(page)) > {"nodes", "mine-with", "shows"}
    for each in ("<form", "<input", "<button", "csrf"):
        assert each not in parts
    assert "<script>" not in page
    assert " on" not in "".join(re.findall(r"<[^>]*>", page)).replace(" on stage", "")


def test_the_page_of_a_show_has_parts_that_change_as_well(show):
    """All of its live elements are in what its script asks for, and no field is."""
    show.add_seats()
    Order.objects.create(show=show, name="Ada")
    client = visitor()
    page, parts = (client.get(f"/shows/{show.pk}/{path}").text for path in ("", "now/"))
    ids = re.compile(r'id="([\w-]+)"[^>]* data-live')
    assert set(ids.findall(parts)) == set(ids.findall(page)) > {"plan", "reports", "running"}
    assert f'data-at="/shows/{show.pk}/now/"' in page
    for each in ("<form", "<input", "csrf"):
        assert each not in parts
    for each in ("plan", "orders", "taken"):
        assert part(parts, each) == part(page, each) != ""
    assert client.post(f"/shows/{show.pk}/now/").status_code == 405
    assert client.get(f"/shows/{show.pk + 1}/now/").status_code == 404


@pytest.mark.parametrize(
    ("down", "told"),
    [
        (set(), "All 5 nodes vote; a majority is 3. Orders with the lock go on."),
        ({1}, "4 of 5 nodes vote; a majority is 3. Orders with the lock go on."),
        ({1, 3, 4}, "2 of 5 nodes vote; a majority is 3. So nobody gets a lock"),
    ],
)
def test_the_strip_of_the_nodes(nodes: MemoryNodes, down: set[int], told: str) -> None:
    """A word for each node, and a sentence that says what they mean."""
    nodes.down = down
    page = visitor().get("/now/").text
    words = [f"Node {i + 1} {'down' if i in down else 'votes'}" for i in range(5)]
    assert part(page, "nodes") == " ".join(words)
    assert part(page, "meaning").startswith(told)


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


def test_orders_of_seats_and_of_the_admin_are_not_of_a_form(show):
    """Orders without a token are in no list and no number of the first page."""
    Order.objects.create(show=show, name="Ada", locked=True)
    page = visitor().get("/").text
    assert "Ada" not in page
    assert "0 forms sent, 0 orders, 0 too many" in part(page, "all-with")


def test_however_often_somebody_clicks_the_list_is_short(show):
    """The newest forms are shown, and a form that was sent very often is one line."""
    client = visitor()
    for seats in range(1, 9):
        action, fields = fill_in(client, "order-unlocked", seats=str(seats))
        client.post(action, fields)
    for _ in range(2):
        client.post(action, fields)
    told = part(client.get("/").text, "mine-without")
    assert re.findall(r"(\d) seats? for", told) == ["8", "7", "6", "5", "4"]
    assert re.findall(r"ordered (\w+)", told) == ["3", "once", "once", "once", "once"]
    assert story.LAST == 5


def test_pages_ask_for_no_form_of_another_method():
    """The page and its parts are read only; the orders are POST only."""
    client = Client(headers={"accept": BROWSER})
    (show,) = Show.objects.all()
    for path in ("/", "/now/", f"/orders/{uuid.uuid4()}/"):
        assert client.post(path).status_code == 405
    for path in ("order", "order-unlocked"):
        assert client.get(f"/shows/{show.pk}/{path}/").status_code == 405
    strict = Client(enforce_csrf_checks=True)
    assert strict.post(f"/shows/{show.pk}/order-unlocked/").status_code == 403
