"""Addresses where a middleware does it all."""

from django.urls import path

from .views import ALWAYS, ORDERS, order

urlpatterns = [*ALWAYS, path(ORDERS, order)]
