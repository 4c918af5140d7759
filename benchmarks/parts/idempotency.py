"""What ``@idempotent`` costs, beside the same statements under ``@single_flight``."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from benchmarks.result import Result
from benchmarks.stage import Stage
from benchmarks.turns import ratio, spread
from tests.support.databases import KINDS, connected, database, why_not

from .fencing import NAMES, Ways, in_turns

ALIAS: Final = "idempotency"
BY_HAND, FIRST, AGAIN = "@single_flight and its statements", "@idempotent, first", "its replay"
FIGURES: Final = {
    FIRST: "@idempotent ÷ @single_flight, SELECT, INSERT, UPDATE",
    AGAIN: "a replay ÷ @single_flight, SELECT, INSERT, UPDATE",
}


def idempotency(stage: Stage) -> Result:
    """Send requests to a view that inserts one row, on each database, in turns."""
    result = Result(
        "Repeated requests",
        "A view that inserts one row, called with a request; five nodes and a server of this "
        "machine. Microseconds. The first way is a view under @single_flight that looks for a "
        "record, and inserts and updates it in the transaction of its work; a COMMIT waits for no "
        "disk, so that what the package adds is seen.",
    )
    for kind in KINDS:
        name = NAMES[kind]
        if why_not(kind):
            result.missing[name] = why_not(kind)
            for figure in FIGURES.values():
                result.figures[f"{name}: {figure}"] = None
            continue
        with _views(stage, kind) as ways:
            times = in_turns(stage, ways)
        for way, each in times.items():
            quotient = ratio(each, times[BY_HAND])
            label = f"{name}: {way}"
            result.rows.append({"": label, "µs": spread(each), "÷ the first way": quotient})
            if way in FIGURES:
                result.figures[f"{name}: {FIGURES[way]}"] = quotient
    return result


@contextmanager
def _views(stage: Stage, kind: str) -> Iterator[Ways]:
    """The views, on a database of their own with the tables that they write."""
    from django.db import connections
    from django.test import override_settings

    from django_redlock.idempotency.models import Record
    from tests.fencing import tables

    with ExitStack() as stack:
        stack.enter_context(connected(stack.enter_context(database(kind)), ALIAS))
        tables.create(ALIAS)
        with connections[ALIAS].schema_editor() as editor:
            editor.create_model(Record)
        stack.enter_context(override_settings(REDLOCK={"default": stage.alias}))
        yield _ways()


def _ways() -> Ways:
    from django.db import transaction
    from django.http import HttpResponse
    from django.test import RequestFactory
    from django.utils import timezone

    from django_redlock.idempotency import idempotent
    from django_redlock.idempotency.models import Record
    from django_redlock.views import single_flight
    from tests.fencing.tables import Counter

    factory, numbers, now = RequestFactory(), itertools.count(), timezone.now()
    records = Record.objects.using(ALIAS)

    def work() -> HttpResponse:
        Counter.objects.using(ALIAS).create()
        return HttpResponse("done", status=201)

    @single_flight(key="by-hand:{request.headers[Idempotency-Key]}")
    def by_hand(request: Any) -> HttpResponse:
        key = request.headers["Idempotency-Key"]
        assert records.filter(pk=f"by hand {key}").first() is None
        with transaction.atomic(using=ALIAS):
            record = Record(identity=f"by hand {key}", begun=now, expires=now)
            record.save(using=ALIAS, force_insert=True)
            response = work()
            record.status, record.body = response.status_code, response.content
            record.finished = timezone.now()
            record.save(using=ALIAS, update_fields=["status", "headers", "body", "finished"])
        return response

    @idempotent(scope="benchmark", using=ALIAS)
    def once(_: Any) -> HttpResponse:
        return work()

    def sending(view: Any, key: str) -> Any:
        request = factory.post("/", headers={"Idempotency-Key": key})
        return lambda: view(request)

    once(factory.post("/", headers={"Idempotency-Key": "known"}))
    return {
        BY_HAND: lambda: sending(by_hand, str(next(numbers))),
        FIRST: lambda: sending(once, str(next(numbers))),
        AGAIN: lambda: sending(once, "known"),
    }
