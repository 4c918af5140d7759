"""What the first page tells: the nodes, and which orders each form has made."""

import math
import uuid
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from http import HTTPStatus
from typing import NamedTuple

from django.db.models import Count, Q

from django_redlock.core.reasons import ReasonCode
from django_redlock.inspection.probe import NodeReport, NodeState
from django_redlock.inspection.survey import Report

from .models import Order, Refusal

LAST = 5  # forms of a visitor that are shown
MOST = 40  # of their orders, however often somebody clicked

GOES_ON = "Orders with the lock go on."
NOBODY = (
    "So nobody gets a lock: orders with it are refused (503), and nothing happens. Orders without "
    "it go on, unprotected."
)
SILENT = "A node that hangs keeps its connections and does not reply. No order waits for it."
HANGS = {ReasonCode.NO_ANSWER, ReasonCode.BACKLOG, ReasonCode.CONNECT_TIMEOUT}
WAITS = (
    "A node that is back has forgotten which locks it granted. It waits until all of them are "
    "over, and then votes again."
)


class Wish(NamedTuple):
    """A form that somebody sent, and when its orders were taken: one, or more without the lock."""

    name: str
    seats: int
    show: str
    times: tuple[datetime, ...]
    refused: int  # further clicks

    @property
    def twice(self) -> bool:
        return len(self.times) > 1


class Refused(NamedTuple):
    """How many clicks were refused: an equal one was at work (409), or no majority (503)."""

    equal: int
    unknown: int


class Side(NamedTuple):
    """The orders with the lock, or those without: the visitor's own, and the number of all.

    Attributes:
        wishes: the visitor's, the newest first.
        forms: how many forms have made orders, of anybody.
        orders: how many orders they made.
        refused: how many clicks of anybody were refused; None without the lock, where none is.
        refused_mine: of the visitor.
    """

    wishes: list[Wish]
    forms: int
    orders: int
    refused: Refused | None
    refused_mine: Refused | None

    @property
    def too_many(self) -> int:
        return self.orders - self.forms


class NodeLine(NamedTuple):
    """A node as the strip shows it: its number, what it does, and how to say so."""

    number: int
    state: str
    words: str


def side(visitor: str, *, locked: bool) -> Side:
    orders = Order.objects.filter(locked=locked, click__isnull=False).order_by()
    count = orders.aggregate(forms=Count("click", distinct=True), orders=Count("pk"))
    mine = orders.filter(visitor=visitor) if visitor else Order.objects.none()
    wishes = _wishes(visitor, mine.order_by("-pk").select_related("show")[:MOST])[:LAST]
    refused = [_refused({}), _refused({"visitor": visitor})] if locked else [None, None]
    return Side(wishes, **count, refused=refused[0], refused_mine=refused[1])


def _refused(whose: dict[str, str]) -> Refused:
    found = Refusal.objects.filter(**whose)
    return Refused(
        **found.aggregate(
            equal=Count("pk", filter=Q(status=HTTPStatus.CONFLICT)),
            unknown=Count("pk", filter=Q(status=HTTPStatus.SERVICE_UNAVAILABLE)),
        )
    )


def wish(visitor: str, click: uuid.UUID | None) -> Wish | None:
    """Return the form of this visitor and its orders; None: there is no order yet."""
    if not visitor or click is None:
        return None
    found = Order.objects.filter(click=click, visitor=visitor).order_by("-pk")
    return next(iter(_wishes(visitor, found.select_related("show")[:MOST])), None)


def _wishes(visitor: str, newest_first: Iterable[Order]) -> list[Wish]:
    forms: dict[uuid.UUID, list[Order]] = {}
    for order in newest_first:
        if order.click is not None:  # else it came by no form of this site
            forms.setdefault(order.click, []).insert(0, order)
    refused = Counter(
        Refusal.objects.filter(
            click__in=forms, visitor=visitor, status=HTTPStatus.CONFLICT
        ).values_list("click", flat=True)
    )
    return [
        Wish(
            orders[0].name,
            orders[0].seats,
            str(orders[0].show),
            tuple(order.at for order in orders),
            refused[click],
        )
        for click, orders in forms.items()
    ]


def node_lines(found: Report) -> list[NodeLine]:
    return [NodeLine(i + 1, *_state(node)) for i, node in enumerate(found.nodes)]


def _state(node: NodeReport) -> tuple[str, str]:
    match node.state:
        case NodeState.UP:
            return "votes", "votes"
        case NodeState.DOWN:
            return "down", "hangs" if node.code in HANGS else "down"
    left = math.ceil(node.guard_left or 0)
    return "waits", f"waits {left} s" if left else "has no vote"


def meaning(found: Report) -> list[str]:
    """Say in sentences what the states of the nodes mean for orders."""
    votes, size, needed = found.voting, len(found.nodes), found.majority
    who = f"All {size} nodes vote" if votes == size else f"{votes} of {size} nodes vote"
    told = [f"{who}; a majority is {needed}. {GOES_ON if votes >= needed else NOBODY}"]
    if any(line.words == "hangs" for line in node_lines(found)):
        told.append(SILENT)
    if any(node.guard_left for node in found.nodes):
        told.append(WAITS)
    return told
