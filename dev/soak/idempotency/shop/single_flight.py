"""Addresses with the lock alone: a request that comes after the first has ended orders again."""

import os
from typing import Any

from django.urls import path

from django_redlock.views import single_flight

from .views import ALWAYS, ORDERS, order

UNAVAILABLE: Any = os.environ["SOAK_UNAVAILABLE"]
once = single_flight(
    "shop:{request.headers[Idempotency-Key]}",
    wait=float(os.environ["SOAK_WAIT"]),
    on_unavailable=UNAVAILABLE,
)
urlpatterns = [*ALWAYS, path(ORDERS, once(order))]
