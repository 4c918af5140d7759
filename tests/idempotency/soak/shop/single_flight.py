"""Addresses with the lock alone: a request that comes after the first has ended orders again."""

import os

from django.urls import path

from django_redlock.views import single_flight

from .views import ALWAYS, ORDERS, order

once = single_flight(
    "shop:{request.headers[Idempotency-Key]}",
    wait=float(os.environ["SOAK_WAIT"]),
    on_unavailable=os.environ["SOAK_UNAVAILABLE"],
)
urlpatterns = [*ALWAYS, path(ORDERS, once(order))]
