"""For tests of surveys: nodes in memory."""

from tests.django.conftest import memory

__all__ = ["memory"]
