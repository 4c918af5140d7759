"""Addresses with the mark that the middleware of django-idempotency-key looks for."""

from django.urls import path
from idempotency_key.decorators import idempotency_key

from .views import ALWAYS, ORDERS, order

urlpatterns = [*ALWAYS, path(ORDERS, idempotency_key(order))]
