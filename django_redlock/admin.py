"""The locks' page in Django's admin: every lock that is held, on every node, and the nodes.

Registered with the default site. Another site takes it by ``site.register(LockKey, LockKeyAdmin)``.

The page only looks. All text that comes from nodes or from the address goes through ``shown``
here and through the template's escaping there: whoever can name a lock chooses it.
"""

# ruff: noqa: ARG002 - Django fixes the signatures of permission methods

from __future__ import annotations

import string
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode

import django
from django.contrib import admin
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpResponseNotAllowed
from django.template.response import TemplateResponse
from django.urls import path
from django.utils import timezone

from django_redlock.inspection.results import Health, HeldLock, LockStatus, age, shown

from . import conf
from .core.names import check_names
from .inspection import patterns
from .inspection.survey import LIMIT, survey
from .models import LockKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.core.paginator import Page
    from django.http import HttpRequest, HttpResponse
    from django.urls import URLPattern

    from django_redlock.inspection.results import Survey

    from .backend import Backend
    from .inspection.lookup import Cell

    ModelAdmin = admin.ModelAdmin[LockKey]
else:
    ModelAdmin = admin.ModelAdmin

SAFE: Final = ("GET", "HEAD")
LETTERS: Final = string.ascii_uppercase
REFRESH: Final = 5  # seconds between two looks of a page that renews itself
MOOD: Final = {
    Health.OK: "good",
    Health.DEGRADED: "odd",
    Health.NO_MAJORITY: "bad",
    LockStatus.HELD: "good",
    LockStatus.RESTING: "calm",
    LockStatus.PARTIAL: "odd",
    LockStatus.SPLIT: "odd",
    LockStatus.UNCLEAR: "bad",
}


@admin.register(LockKey)
class LockKeyAdmin(ModelAdmin):
    """One page, for whoever has ``django_redlock.view_lock``; nothing to add or to change."""

    list_per_page = 50
    change_list_template = "admin/django_redlock/lockkey/change_list.html"

    def get_urls(self) -> list[URLPattern]:
        """The page and nothing else: no form, no deletion, no history."""
        view = self.admin_site.admin_view(self.changelist_view)
        name = f"{self.opts.app_label}_{self.opts.model_name}_changelist"
        return [path("", view, name=name)]

    def has_view_permission(self, request: HttpRequest, obj: LockKey | None = None) -> bool:
        """Whether the user may see the locks."""
        return request.user.has_perm("django_redlock.view_lock")

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Whether the admin's index lists the page."""
        return self.has_view_permission(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody: locks are taken by code."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: LockKey | None = None) -> bool:
        """Nobody."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: LockKey | None = None) -> bool:
        """Nobody."""
        return False

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The page. It can be looked at, and nothing can be sent to it."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method not in SAFE:
            return HttpResponseNotAllowed(SAFE)
        request.current_app = self.admin_site.name
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": "Locks",
            "listed": django.VERSION >= (6, 1),  # the path is a list since then
            **_look(PageQuery.of(request), self.list_per_page),
            **(extra_context or {}),
        }
        return TemplateResponse(request, self.change_list_template, context)


class PageQuery(NamedTuple):
    """What an address asks for. Whatever else it says is not repeated in links."""

    alias: str = ""
    q: str = ""
    p: str = ""
    refresh: str = ""

    @classmethod
    def of(cls, request: HttpRequest) -> PageQuery:
        """Read the query of a request."""
        return cls(**{key: request.GET.get(key, "") for key in cls._fields})

    def link(self, **changes: str) -> str:
        """The address of this page with some things changed."""
        wanted = self._replace(**changes)._asdict()
        return f"?{urlencode({key: value for key, value in wanted.items() if value})}"


# -- looking --------------------------------------------------------------------------------------


def _look(wish: PageQuery, per_page: int) -> dict[str, Any]:
    """What the template shows."""
    context: dict[str, Any] = {
        "wish": wish,
        "query": shown(wish.q),
        "now": timezone.now(),
        "refresh": REFRESH,
        "everything": wish.link(q="", p=""),
        "reload": wish.link(),
        "refresh_on": wish.link(refresh="on"),
        "refresh_off": wish.link(refresh=""),
    }
    try:
        aliases = list(conf.aliases())
        if not aliases:
            return context | {"misconfigured": "REDLOCK names no alias: there is nothing to show."}
        alias = wish.alias or ("default" if "default" in aliases else aliases[0])
        context["aliases"] = [_choice(str(each), alias, wish) for each in aliases]
        backend = conf.backend(alias)
    except ImproperlyConfigured as error:
        return context | {"misconfigured": shown(str(error))}
    found = survey(backend, limit=LIMIT, memory=True)
    locks = list(found.locks)
    if wish.q:
        try:
            check_names(wish.q)
        except ValueError as error:
            context["refused"] = shown(str(error))
        searched = _search(backend, wish.q, found, whole="refused" not in context)
        locks = [lock for lock in searched.locks if lock.on]
        context |= {"beyond": searched.beyond, "unsearched": searched.unsearched}
    page = Paginator(locks, per_page).get_page(wish.p)
    return context | {
        "alias": shown(alias),
        "summary": found.summary,
        "mood": MOOD[found.health],
        "advice": [shown(sentence) for sentence in found.advice],
        "nodes": [_node_row(i, found) for i in range(len(found.nodes))],
        "rows": [_lock_row(lock, found) for lock in page.object_list],
        "page": page,
        "pages": list(_pages(page, wish)),
        "total": len(found.locks),
        "truncated": found.truncated,
        "complete": found.complete,
    }


def _choice(alias: str, chosen: str, wish: PageQuery) -> dict[str, Any]:
    link = wish.link(alias=alias, p="")
    return {"name": shown(alias), "link": link, "chosen": alias == chosen}


def _search(backend: Backend, query: str, found: Survey, *, whole: bool) -> Survey:
    """The locks whose names contain the query or match it as a pattern, and the one of this name.

    Args:
        found: what was found without a search; all that is held, or not.
        whole: whether it can be a lock's name: a stranger's lock is in no index.
    """
    pattern = patterns.parse(query, ignore_case=True)
    parts = {query.casefold(), pattern.name.casefold()}

    def matches(name: str) -> bool:
        texts = name.casefold(), shown(name).casefold()
        return any(part in text for part in parts for text in texts) or pattern.matches(name)

    names = [query, pattern.name] if whole else []
    if found.truncated:
        return survey(backend, names, limit=LIMIT, matching=matches)
    locks = [lock for lock in found.locks if matches(lock.name)]
    unknown = set(names) - {lock.name for lock in locks}
    if unknown:
        locks = [*survey(backend, sorted(unknown)).locks, *locks]
    return replace(found, locks=tuple(locks))


def _pages(page: Page[HeldLock], wish: PageQuery) -> Iterator[dict[str, Any]]:
    """The numbers to choose from, the omitted ones without a link."""
    if page.paginator.num_pages > 1:
        for number in page.paginator.get_elided_page_range(page.number):
            link = wish.link(p=str(number)) if isinstance(number, int) else ""
            yield {"number": number, "link": link, "chosen": number == page.number}


# -- rows -----------------------------------------------------------------------------------------


def _node_row(i: int, found: Survey) -> dict[str, Any]:
    node, heard = found.nodes[i], found.heard[i]
    return {
        "number": i + 1,
        "label": shown(node.label),
        "state": found.state(i),
        "mood": "odd" if found.warning(i) else "good" if node.voting else "odd" if heard else "bad",
        "why": shown(found.why(i)),
        "version": shown(node.software),
        "role": shown(node.role),
        "uptime": "" if node.uptime is None else age(node.uptime),
        "round_trip": "" if node.round_trip is None else f"{node.round_trip * 1000:.2f} ms",
        "guard": _seconds(node.guard_left) if node.guard_left else "",
    }


def _lock_row(lock: HeldLock, found: Survey) -> dict[str, Any]:
    """A line of the table. Where several have keys, letters say whose is where."""
    letters = dict(zip((each.owner for each in lock.owners), LETTERS, strict=False))
    if len(letters) == 1:
        letters = {}
    return {
        "name": shown(lock.name),
        "kind": lock.kind.value,
        "mood": MOOD[lock.kind],
        "votes": f"{lock.on} of {lock.of}",
        "majority": lock.on >= found.majority,
        "fence": "" if lock.fence is None else str(lock.fence),
        "owners": [
            {"label": shown(each.label), "letter": letters.get(each.owner, ""), "on": each.on}
            for each in lock.owners
        ],
        "low": _seconds(lock.lowest),
        "high": _seconds(lock.highest),
        "cells": [
            _cell(cell, i, found, letters.get(cell.owner, "") if cell else "")
            for i, cell in enumerate(lock.cells)
        ],
    }


def _cell(cell: Cell | None, i: int, found: Survey, letter: str) -> dict[str, Any]:
    return {
        "node": i + 1,
        "heard": found.heard[i],
        "found": cell is not None,
        "left": _seconds(cell.left) if cell else "",
        "letter": letter,
    }


def _seconds(left: float | None) -> str:
    """Seconds as page and script write them, in any language; "" for ever."""
    return "" if left is None else f"{left:.1f}"
