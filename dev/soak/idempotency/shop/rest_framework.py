"""Addresses with the decorator of drf-idempotency, which REST framework's errors need around it."""

from django.urls import path
from drf_idempotency import idempotent
from rest_framework.decorators import api_view

from .views import ALWAYS, ORDERS, order

urlpatterns = [*ALWAYS, path(ORDERS, api_view(["POST"])(idempotent()(order)))]
