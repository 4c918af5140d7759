"""What every candidate serves: a view that is slow enough to be killed anywhere."""

from __future__ import annotations

import json
import os
import secrets
import time

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import URLPattern, path

from dev.soak.notebook import Notebook

STEP = 0.025  # seconds
ORDERS = "orders/"
notebook = Notebook(os.environ["SOAK_HISTORY"])


def order(request: HttpRequest) -> HttpResponse:
    """Sell: something slow, an order, something slow."""
    from .models import Order

    key, pid = request.headers["Idempotency-Key"], os.getpid()
    notebook.write("begin", key=key, pid=pid)
    item = json.loads(request.body)["item"]
    time.sleep(STEP)
    sold = Order.objects.create(key=key, token=secrets.token_hex(8))
    time.sleep(STEP)
    notebook.write("end", key=key, pid=pid)
    return JsonResponse({"id": sold.pk, "token": sold.token, "item": item}, status=201)


def up(request: HttpRequest) -> HttpResponse:
    """Answer: the site is there."""
    return HttpResponse(status=204)


ALWAYS: list[URLPattern] = [path("up/", up)]
