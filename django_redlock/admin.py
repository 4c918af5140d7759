"""The page of locks in Django's admin: what is held, the tasks that wait, and the nodes.

The default site has it. Another site gets it by ``site.register(LockKey, LockKeyAdmin)``.

A second page shows one lock: what each node has of it, and whether somebody waits; or the record
of work that is done once. Users with ``release_lock`` besides can take the lock away there, or let
the work be done again.

All text that comes from nodes or from the address passes through ``printable``, here or in
``inspection.rows``, and is escaped by the template: a client that can name a lock chooses it.
"""

# ruff: noqa: ARG002 - Django fixes the signatures of permission methods

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode

import django
from django.contrib import admin, messages
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.core.paginator import Page, Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext, pgettext, pgettext_lazy

from . import conf
from .backend import Backend
from .core.errors import NodesUnavailable
from .core.names import LONGEST
from .core.reasons import printable
from .core.slots import shown as slot_shown
from .forms import AgainForm, ReleaseForm, seen, was_seen
from .inspection import rows, survey
from .inspection.revoke import checked_entry, outcome_of, refuse, taking, why_of
from .inspection.survey import HeldLock, LockStatus, Wanted, voting_or_raise
from .models import LockKey

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[LockKey]
else:
    ModelAdmin = admin.ModelAdmin

SAFE: Final = ("GET", "HEAD")
AGES: Final = {
    "": pgettext_lazy("redlock", "any time"),
    "0": pgettext_lazy("redlock", "any time, oldest first"),
    "60": pgettext_lazy("redlock", "a minute"),
    "600": pgettext_lazy("redlock", "10 minutes"),
    "3600": pgettext_lazy("redlock", "an hour"),
    "86400": pgettext_lazy("redlock", "a day"),
}
REFRESH: Final = 3  # seconds after which the page's script asks for it again


@admin.register(LockKey)
class LockKeyAdmin(ModelAdmin):
    """Two pages, for users with ``django_redlock.view_lock``; nothing to add or to change."""

    list_per_page = 50
    lock_template = "admin/django_redlock/lockkey/one.html"
    change_list_template = "admin/django_redlock/lockkey/change_list.html"

    def get_urls(self) -> list[URLPattern]:
        """Return the URLs of the two pages, and no others: no form, no deletion, no history."""
        name = f"{self.opts.app_label}_{self.opts.model_name}"
        view = self.admin_site.admin_view
        return [
            path("", view(self.changelist_view), name=f"{name}_changelist"),
            path("lock/", view(self.lock_view), name=f"{name}_lock"),
        ]

    def has_view_permission(self, request: HttpRequest, obj: LockKey | None = None) -> bool:
        """Return True if the user may see the locks."""
        return request.user.has_perm("django_redlock.view_lock")

    def has_release_permission(self, request: HttpRequest) -> bool:
        """Return True if the user may take locks away."""
        allowed = request.user.has_perm("django_redlock.release_lock")
        return allowed and self.has_view_permission(request)

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
        """Return False: locks are no rows. Another page takes them away."""
        return False

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the page; only GET and HEAD are allowed."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method not in SAFE:
            return HttpResponseNotAllowed(SAFE)
        shown = {**look(PageQuery.of(request), self.list_per_page), **(extra_context or {})}
        title = pgettext("redlock", "Locks")
        return self._page(request, self.change_list_template, title, shown)

    def lock_view(self, request: HttpRequest) -> HttpResponse:
        """Show one lock; who may has a form that takes it away from the holder that is shown."""
        releases = self.has_release_permission(request)
        if not (releases or (self.has_view_permission(request) and request.method != "POST")):
            raise PermissionDenied
        if request.method not in (*SAFE, "POST"):
            return HttpResponseNotAllowed((*SAFE, "POST"))
        alias, name = request.GET.get("alias", ""), request.GET.get("name", "")
        urls = f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist"
        home = reverse(urls, current_app=self.admin_site.name)
        back = f"{home}{PageQuery(alias=alias).link()}"
        shown: dict[str, Any] = {"back": back, "here": pgettext("redlock", "Lock")}
        shown |= {"again": f"?{request.GET.urlencode()}", "refresh": REFRESH}
        title = printable(name[:LONGEST]) or shown["here"]
        try:
            backend = conf.backend(alias or "default")
            if slot := request.GET.get("slot", ""):
                name = checked_entry(name, int(slot) if slot.isdecimal() else slot)
            report = survey(backend, [name])
            voting_or_raise(report, name)
            lock = report.locks[0]
            shown["lock"] = rows.lock(lock, report.nodes, report.majority)
            title = shown["lock"]["lock"]
            shown["nodes"] = [rows.node(each) for each in report.nodes]
            refuse(lock, now=True)
            if releases and self._released(request, backend, lock, shown):
                return HttpResponseRedirect(back)
        except (ImproperlyConfigured, LookupError, NodesUnavailable, ValueError) as error:
            # The script loads the first one anew with the lock, and leaves the second one there.
            where = "refused" if request.method in SAFE else "problem"
            shown[where] = printable(str(error))
        return self._page(request, self.lock_template, title, shown)

    def _released(
        self, request: HttpRequest, backend: Backend, lock: HeldLock, shown: dict[str, Any]
    ) -> bool:
        """Take the lock away, or let the work be done again, if the form says so; else show it."""
        fresh = {"seen": seen(backend, lock), "reason": request.POST.get("reason", "")}
        form_of = AgainForm if lock.status is LockStatus.DONE else ReleaseForm
        shown["form"] = form_of(initial=fresh)
        is_foreign = lock.status is LockStatus.HELD and lock.fence is None  # there is no other way
        shown["deletes"] = is_foreign or "now" in request.POST
        if request.method != "POST":
            return False
        if not was_seen(request.POST.get("seen", ""), backend, lock):
            shown["problem"] = gettext("Look again: this has changed, or a minute has passed.")
            return False
        shown["form"] = form = form_of(request.POST)
        if not form.is_valid():
            return False
        now = form.cleaned_data.get("now", False)
        refuse(lock, now=now)
        why = why_of(request.user.get_username(), form.cleaned_data["reason"])
        became = outcome_of(backend.run(taking(backend, lock, why, now=now)))
        name = printable(lock.name) + slot_shown(lock.slot)
        self.log_change(request, LockKey(name=name), f"{became} ({why})")
        # A message begins with a capital, Django sees to it; this one begins with a name.
        messages.info(request, format_html("<bdi>{}</bdi>", became))
        return True

    def _page(
        self, request: HttpRequest, template: str, title: str, shown: dict[str, Any]
    ) -> HttpResponse:
        request.current_app = self.admin_site.name
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": title,
            "listed": django.VERSION >= (6, 1),  # the path is a list since then
            **shown,
        }
        return TemplateResponse(request, template, context)


class PageQuery(NamedTuple):
    """The query of the page's address; links repeat these fields and no others."""

    alias: str = ""
    q: str = ""
    p: str = ""
    finished: str = ""
    older: str = ""

    @classmethod
    def of(cls, request: HttpRequest) -> PageQuery:
        """Read the query of a request; nothing in it is longer than a name can be."""
        return cls(**{key: request.GET.get(key, "")[:LONGEST] for key in cls._fields})

    def link(self, **changes: str) -> str:
        """Return the query string of this page with some fields changed."""
        wanted = self._replace(**changes)._asdict()
        return f"?{urlencode({key: value for key, value in wanted.items() if value})}"

    def pages(self, page: Page[Any]) -> Iterator[dict[str, Any]]:
        """Yield the page numbers to choose from, the omitted ones without a link."""
        if page.paginator.num_pages > 1:
            for number in page.paginator.get_elided_page_range(page.number):
                link = self.link(p=str(number)) if isinstance(number, int) else ""
                yield {"text": number, "link": link, "chosen": number == page.number}


def look(asked: PageQuery, per_page: int) -> dict[str, Any]:
    """Survey an alias; return the context of the template."""
    context: dict[str, Any] = {"asked": asked, "query": printable(asked.q), "now": timezone.now()}
    try:
        aliases = list(map(str, conf.aliases()))
        alias = asked.alias or ("default" if "default" in aliases else min(aliases[:1], default=""))
        context["aliases"] = [
            {
                "text": printable(each),
                "link": asked.link(alias=each, p=""),
                "chosen": each == alias,
            }
            for each in aliases
        ]
        backend = conf.backend(alias)
    except ImproperlyConfigured as error:
        return context | {"misconfigured": printable(str(error))}
    older = float(asked.older) if asked.older in AGES and asked.older else None
    texts = [asked.q] if asked.q else []
    found = Wanted(texts, part=True, finished=bool(asked.finished), older_than=older).survey(
        backend
    )
    page = Paginator(found.locks, per_page).get_page(asked.p)
    return context | {
        "found": found,
        "alias": printable(alias),
        "one": f"lock/?{urlencode({'alias': alias})}",
        "summary": str(found.summary),
        "mood": rows.MOODS[found.health],
        "advice": [printable(str(each)) for each in found.advice],
        "nodes": [rows.node(each) for each in found.nodes],
        "slots": list(rows.slots(found, counts=older is None)),
        "rows": [rows.lock(each, found.nodes, found.majority) for each in page.object_list],
        "page": page,
        "pages": list(asked.pages(page)),
        "refresh": REFRESH,
        "everything": asked.link(q="", p=""),
        "finished": asked.link(finished="" if asked.finished else "on", p=""),
        "reload": asked.link(),
        "ages": [
            {"text": text, "link": asked.link(older=value, p=""), "chosen": asked.older == value}
            for value, text in AGES.items()
        ],
    }
