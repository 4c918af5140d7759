"""For the tests of pages: nodes in memory, as for those of Django's places."""

from tests.django.conftest import memory

__all__ = ["memory"]
