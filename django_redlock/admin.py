"""The page of locks in Django's admin: every lock that is held, the tasks, and the nodes.

The default site has it. Another site gets it by ``site.register(LockKey, LockKeyAdmin)``.

A second page shows one lock: what each node has of it, whether somebody waits, and what happened
to it in this process. Users with ``release_lock`` besides can take the lock away there.

All text that comes from nodes or from the address passes through ``printable``, here or in
``inspection.rows``, and is escaped by the template: a client that can name a lock chooses it.
"""

# ruff: noqa: ARG002 - Django fixes the signatures of permission methods

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from http import HTTPStatus
from importlib.util import find_spec
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
from .core.names import check_names
from .core.reasons import printable
from .forms import ReleaseForm, seen, was_seen
from .inspection import LIMIT, Report, Task, list_tasks, patterns, recent, rows, survey
from .inspection.revoke import refuse, taking, told, why_of
from .inspection.survey import HeldLock, oldest_first, voting_or_raise
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
        recent.record()
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
        """Show the page; only GET and HEAD are allowed. A search that is too long is a 400."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method not in SAFE:
            return HttpResponseNotAllowed(SAFE)
        found = look(PageQuery.of(request), self.list_per_page)
        title = pgettext("redlock", "Locks")
        shown = {**found, **(extra_context or {})}
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
        back = f"{home}{PageQuery(alias=alias).link() if alias else ''}"
        asked = ReleaseForm(request.POST) if request.method == "POST" else None
        shown: dict[str, Any] = {
            "back": back,
            "here": pgettext("redlock", "Lock"),
            "events": [rows.event(each) for each in recent.happened(alias or "default", name)],
            "most": recent.MOST,
        }
        try:
            backend = conf.backend(alias or "default")
            report = survey(backend, [name])
            voting_or_raise(report, name)
            lock = report.locks[0]
            shown["lock"] = rows.lock(lock, report.nodes, report.majority)
            shown["nodes"] = [rows.node(each) for each in report.nodes]
            refuse(lock, now=True)
            if asked is not None and not was_seen(request.POST.get("seen", ""), backend, lock):
                shown["refused"] = gettext(
                    "Look again: the holder has changed, or a minute has passed."
                )
                asked = None
            if asked is not None and asked.is_valid():
                became = self._release(request, backend, lock, asked.cleaned_data)
                # A message begins with a capital, Django sees to it; this one begins with a name.
                messages.info(request, format_html("<bdi>{}</bdi>", became))
                return HttpResponseRedirect(back)
            if releases:
                again = {"seen": seen(backend, lock), "reason": request.POST.get("reason", "")}
                shown["form"] = asked or ReleaseForm(initial=again)
        except (ImproperlyConfigured, LookupError, NodesUnavailable, ValueError) as error:
            shown["refused"] = rows.said(error)
        return self._page(request, self.lock_template, shown["here"], shown)

    def _page(
        self, request: HttpRequest, template: str, title: str, shown: dict[str, Any]
    ) -> HttpResponse:
        """Return a page of the admin with this title; ``shown`` may have the ``status``."""
        request.current_app = self.admin_site.name
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": title,
            "listed": django.VERSION >= (6, 1),  # the path is a list since then
            **shown,
        }
        return TemplateResponse(request, template, context, status=shown.get("status"))

    def _release(
        self, request: HttpRequest, backend: Backend, lock: HeldLock, wanted: dict[str, Any]
    ) -> str:
        """Take a lock away, and enter that into the admin's log; return what became of it.

        The log is English: others read it, whatever their language.
        """
        refuse(lock, now=wanted["now"])
        why = why_of(request.user.get_username(), wanted["reason"])
        sentence = told(backend.run(taking(backend, lock, why, now=wanted["now"])))
        self.log_change(request, LockKey(name=printable(lock.name)), f"{sentence} ({why})")
        return rows.said(sentence)


class PageQuery(NamedTuple):
    """The query of the page's address; links repeat these fields and no others."""

    alias: str = ""
    q: str = ""
    p: str = ""
    t: str = ""
    finished: str = ""
    older: str = ""

    @classmethod
    def of(cls, request: HttpRequest) -> PageQuery:
        """Read the query of a request."""
        return cls(**{key: request.GET.get(key, "") for key in cls._fields})

    def link(self, **changes: str) -> str:
        """Return the query string of this page with some fields changed."""
        wanted = self._replace(**changes)._asdict()
        return f"?{urlencode({key: value for key, value in wanted.items() if value})}"

    def pages(self, page: Page[Any], field: str) -> Iterator[dict[str, Any]]:
        """Yield the page numbers to choose from, the omitted ones without a link."""
        if page.paginator.num_pages > 1:
            for number in page.paginator.get_elided_page_range(page.number):
                link = self.link(**{field: str(number)}) if isinstance(number, int) else ""
                yield {"number": number, "link": link, "chosen": number == page.number}


def look(asked: PageQuery, per_page: int) -> dict[str, Any]:
    """Survey an alias; return the context of the template."""
    context: dict[str, Any] = {}
    search = None
    try:
        search = _Search.of(asked.q)
    except ValueError as error:  # all that is held is shown instead
        asked = asked._replace(q="")
        context |= {"status": HTTPStatus.BAD_REQUEST, "refused": rows.said(error)}
    context |= {
        "asked": asked,
        "query": printable(asked.q),
        "now": timezone.now(),
        "refresh": REFRESH,
        "everything": asked.link(q="", p="", t=""),
        "ages": [
            {"text": text, "link": asked.link(older=value, p=""), "chosen": asked.older == value}
            for value, text in AGES.items()
        ],
        "finished_on": asked.link(finished="on", t=""),
        "finished_off": asked.link(finished="", t=""),
        "reload": asked.link(),
    }
    try:
        aliases = list(conf.aliases())
        if not aliases:
            nothing = gettext("REDLOCK names no alias: there is nothing to show.")
            return context | {"misconfigured": nothing}
        alias = asked.alias or ("default" if "default" in aliases else aliases[0])
        context["aliases"] = [
            {
                "name": printable(each),
                "link": asked.link(alias=each, p="", t=""),
                "chosen": each == alias,
            }
            for each in map(str, aliases)
        ]
        backend = conf.backend(alias)
    except ImproperlyConfigured as error:
        return context | {"misconfigured": printable(str(error))}
    found = survey(backend, limit=LIMIT, memory=True)
    locks = list(found.locks)
    if search is not None:
        searched = search.among(backend, found)
        locks = [lock for lock in searched.locks if lock.on]
        context |= {"beyond": searched.beyond, "unsearched": searched.unsearched}
        context["refused"] = search.refused
    if asked.older in AGES and asked.older:
        locks = oldest_first(locks, float(asked.older))
    tasks = list_tasks(
        backend,
        found.heard,
        limit=LIMIT,
        finished=bool(asked.finished),
        matching=None if search is None else search.finds_task,
    )
    page = Paginator(locks, per_page).get_page(asked.p)
    task_page = Paginator(tasks.tasks, per_page).get_page(asked.t)
    return context | {
        "alias": printable(alias),
        "one": f"lock/?{urlencode({'alias': alias})}",
        "summary": rows.said(found.summary),
        "mood": rows.MOODS[found.health],
        "advice": list(map(rows.said, found.advice)),
        "nodes": [rows.node(each) for each in found.nodes],
        "rows": [rows.lock(each, found.nodes, found.majority) for each in page.object_list],
        "page": page,
        "pages": list(asked.pages(page, "p")),
        "total": len(found.locks),
        "truncated": found.truncated,
        "complete": found.complete,
        "tasks": [rows.task(each) for each in task_page.object_list],
        "task_page": task_page,
        "task_pages": list(asked.pages(task_page, "t")),
        "more_tasks": tasks.beyond,
        "tasks_truncated": tasks.truncated,
        "has_tasks": bool(tasks.tasks or asked.finished or find_spec("celery")),
    }


class _Search(NamedTuple):
    """A search for texts that contain the query or match it as a pattern.

    Attributes:
        names: what is looked up, too, because another client's lock is in no index.
        refused: why the query can be no name; then ``names`` is empty.
    """

    pattern: patterns.Parsed
    parts: frozenset[str]
    names: frozenset[str]
    refused: str

    @classmethod
    def of(cls, query: str) -> _Search | None:
        """Parse the query; None for an empty one.

        Raises:
            ValueError: it is too long.
        """
        if not query:
            return None
        pattern = patterns.parse(query, ignore_case=True)
        texts = frozenset({query, pattern.name})
        parts = frozenset(text.casefold() for text in texts)
        try:
            check_names(query)
        except ValueError as error:
            return cls(pattern, parts, frozenset(), rows.said(error))
        return cls(pattern, parts, texts, "")

    def finds(self, text: str) -> bool:
        """Return True if the text contains the query or matches it."""
        texts = text.casefold(), printable(text).casefold()
        return any(part in each for part in self.parts for each in texts) or self.pattern.matches(
            text
        )

    def finds_task(self, task: Task) -> bool:
        """Return True if its name, its id, or what it locks is found."""
        return any(map(self.finds, task.texts))

    def among(self, backend: Backend, found: Report) -> Report:
        """Find locks in a survey without a search; it may be truncated."""
        if found.truncated:
            return survey(backend, sorted(self.names), limit=LIMIT, matching=self.finds)
        locks = [lock for lock in found.locks if self.finds(lock.name)]
        unknown = self.names - {lock.name for lock in locks}
        if unknown:
            locks = [*survey(backend, sorted(unknown)).locks, *locks]
        return replace(found, locks=tuple(locks))
