"""The table: a row for each piece of work that is done, or is being done in a transaction."""

from __future__ import annotations

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.utils.translation import gettext_lazy, pgettext_lazy

if not apps.is_installed("django_redlock.idempotency"):
    raise ImproperlyConfigured(
        "@idempotent keeps its records in a table: add 'django_redlock.idempotency' to "
        "INSTALLED_APPS, and run manage.py migrate"
    )


class Record(models.Model):
    """That a piece of work was done, and the answer that its first client got.

    The primary key is a digest of scope and key: databases compare texts each in its own way, and
    some take "a" for "A".
    """

    identity = models.CharField(max_length=64, primary_key=True, editable=False)
    scope = models.CharField(gettext_lazy("scope"), max_length=255)
    key = models.CharField(pgettext_lazy("redlock", "key"), max_length=255)
    fingerprint = models.CharField(gettext_lazy("fingerprint"), max_length=64)
    begun = models.DateTimeField(gettext_lazy("begun"))
    # Nobody sees a row without it, except where a database shows what is not committed.
    finished = models.DateTimeField(gettext_lazy("finished"), null=True)
    expires = models.DateTimeField(gettext_lazy("expires"), db_index=True)
    status = models.PositiveSmallIntegerField(  # None: of idempotent_work
        gettext_lazy("status"), null=True
    )
    headers = models.JSONField(gettext_lazy("headers"), default=list)
    body = models.BinaryField(gettext_lazy("body"), null=True)

    class Meta:
        """Names, and the permissions: to see the list, to delete, and to see what was answered."""

        default_permissions = ("view", "delete")
        permissions = (("view_body", "Can view the bodies of stored answers"),)
        verbose_name = gettext_lazy("stored answer")
        verbose_name_plural = gettext_lazy("stored answers")

    def __str__(self) -> str:
        return f"{self.scope} {self.key}"
