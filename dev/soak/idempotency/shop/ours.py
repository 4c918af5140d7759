"""Addresses with the decorator of this package."""

import os
from typing import Any

from django.urls import path

from django_redlock.idempotency import idempotent

from .views import ALWAYS, ORDERS, order

UNAVAILABLE: Any = os.environ["SOAK_UNAVAILABLE"]
once = idempotent(
    scope="shop",
    wait=float(os.environ["SOAK_WAIT"]),
    on_unavailable=UNAVAILABLE,
)
urlpatterns = [*ALWAYS, path(ORDERS, once(order))]
