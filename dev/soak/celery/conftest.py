"""The site with real workers."""

from tests.celery.conftest import shared, site

__all__ = ["shared", "site"]
