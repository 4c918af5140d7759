"""A model without a table, for the admin page and the permissions.

Locks are on the nodes. Django needs a model for an admin page, its entry in the index and the
permissions ``django_redlock.view_lock`` and ``django_redlock.release_lock``.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import pgettext_lazy


class NoRows(models.Manager["LockKey"]):
    """A manager that finds no rows, so that ``dumpdata`` and the like need no table."""

    def get_queryset(self) -> models.QuerySet[LockKey]:
        """Return no rows, without a query."""
        return super().get_queryset().none()


class LockKey(models.Model):
    """The key of a lock. There are no rows; see ``inspection`` for what is held."""

    name = models.TextField(primary_key=True)

    objects = NoRows()

    class Meta:
        """Names and permissions, and no table."""

        managed = False
        base_manager_name = "objects"
        default_permissions = ()
        permissions = (
            ("view_lock", "Can view locks"),
            ("release_lock", "Can release locks"),
        )
        verbose_name = pgettext_lazy("redlock", "lock")
        verbose_name_plural = pgettext_lazy("redlock", "locks")

    def __str__(self) -> str:
        return self.name
