"""Addresses with the decorator of this package."""

import os
from importlib import import_module

from django.urls import path

from .views import ALWAYS, ORDERS, order

idempotent = import_module("django_redlock.idempotency").idempotent
once = idempotent(
    scope="shop", wait=float(os.environ["SOAK_WAIT"]), on_unavailable=os.environ["SOAK_UNAVAILABLE"]
)
urlpatterns = [*ALWAYS, path(ORDERS, once(order))]
