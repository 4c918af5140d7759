"""The admin's list of stored answers. The permission ``view_body`` shows the bodies.

Nothing can be changed. One that was stored by mistake can be deleted, by the permission
``delete_record``; the page that asks for it says what that means.
"""

# ruff: noqa: ARG002 - Django fixes the signatures of permission methods

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext, gettext_lazy

from .models import Record

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Record]
else:
    ModelAdmin = admin.ModelAdmin

SHOWN: Final = 10_000  # characters of a body


@admin.register(Record)
class RecordAdmin(ModelAdmin):
    """What was answered to whom; nothing can be changed here, and one at a time be deleted."""

    actions = None
    list_display = ("key", "scope", "status", "begun", "expires")
    list_filter = ("begun",)  # one by status would read the whole table for its choices
    search_fields = ("=identity", "key", "scope")
    show_full_result_count = False
    ordering = ("-expires",)
    fields = (*list_display, "finished", "fingerprint", "headers")
    readonly_fields = (*fields, "shown_body")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Record]:
        """Leave out the bodies, which the list does not show."""
        return super().get_queryset(request).defer("body")

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Refuse to filter by the body: who may not see it could guess it, letter by letter."""
        return not lookup.startswith("body") and super().lookup_allowed(lookup, value, request)

    def get_fields(self, request: HttpRequest, obj: Record | None = None) -> tuple[str, ...]:
        """Leave the body out for who may not see it: it may be somebody's personal data."""
        may_see = request.user.has_perm("redlock_idempotency.view_body")
        return (*self.fields, "shown_body") if may_see else self.fields

    @admin.display(description=gettext_lazy("body"))
    def shown_body(self, record: Record) -> str:
        """Return the body, as far as it is text."""
        if record.body is None:
            return gettext("not stored")
        try:
            text = bytes(record.body).decode()
        except UnicodeDecodeError:
            return gettext("%d bytes, which are no text") % len(record.body)
        return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: a record is what a request has left."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False."""
        return False
