"""Two admin sites: Django's own, and one as a project may make it."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_redlock.admin import LockKeyAdmin
from django_redlock.models import LockKey

site = admin.AdminSite(name="operations")
site.register(LockKey, LockKeyAdmin)

urlpatterns = [path("admin/", admin.site.urls), path("operations/", site.urls)]


def strict_csp(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Middleware: the browser takes scripts, styles and pictures from files of this server only."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response["Content-Security-Policy"] = "default-src 'self'; frame-ancestors 'none'"
        return response

    return middleware
