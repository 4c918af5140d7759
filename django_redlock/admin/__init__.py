"""The page of locks in Django's admin: every lock that is held, the tasks, and the nodes.

The default site has it. Another site gets it by ``site.register(LockKey, LockKeyAdmin)``.

The page changes nothing. All text that comes from nodes or from the address passes through
``shown`` here, in ``page`` and in ``rows``, and is escaped by the template: a client that can name
a lock chooses it.
"""

# ruff: noqa: ARG002 - Django fixes the signatures of permission methods

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import django
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpResponseNotAllowed
from django.template.response import TemplateResponse
from django.urls import path

from django_redlock.models import LockKey

from .page import PageQuery, look

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse
    from django.urls import URLPattern

    ModelAdmin = admin.ModelAdmin[LockKey]
else:
    ModelAdmin = admin.ModelAdmin

SAFE: Final = ("GET", "HEAD")


@admin.register(LockKey)
class LockKeyAdmin(ModelAdmin):
    """One page, for users with ``django_redlock.view_lock``; nothing to add or to change."""

    list_per_page = 50
    change_list_template = "admin/django_redlock/lockkey/change_list.html"

    def get_urls(self) -> list[URLPattern]:
        """Return the URL of the page, and no others: no form, no deletion, no history."""
        view = self.admin_site.admin_view(self.changelist_view)
        name = f"{self.opts.app_label}_{self.opts.model_name}_changelist"
        return [path("", view, name=name)]

    def has_view_permission(self, request: HttpRequest, obj: LockKey | None = None) -> bool:
        """Return True if the user may see the locks."""
        return request.user.has_perm("django_redlock.view_lock")

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Return True if the admin's index lists the page."""
        return self.has_view_permission(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: locks are taken by code."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: LockKey | None = None) -> bool:
        """Return False: locks cannot be changed."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: LockKey | None = None) -> bool:
        """Return False: the page changes nothing."""
        return False

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the page; only GET and HEAD are allowed. A search that is too long is a 400."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method not in SAFE:
            return HttpResponseNotAllowed(SAFE)
        request.current_app = self.admin_site.name
        found = look(PageQuery.of(request), self.list_per_page)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": "Locks",
            "listed": django.VERSION >= (6, 1),  # the path is a list since then
            **found,
            **(extra_context or {}),
        }
        return TemplateResponse(
            request, self.change_list_template, context, status=found.get("status")
        )
