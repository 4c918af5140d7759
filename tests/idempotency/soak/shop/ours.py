"""Addresses with the decorator of this package."""

import os

from django.urls import path

from django_redlock.idempotency import idempotent

from .views import ALWAYS, ORDERS, order

once = idempotent(
    scope="shop",
    wait=float(os.environ["SOAK_WAIT"]),
    on_unavailable=os.environ["SOAK_UNAVAILABLE"],
)
urlpatterns = [*ALWAYS, path(ORDERS, once(order))]
