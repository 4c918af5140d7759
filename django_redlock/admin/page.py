"""Ask the nodes what the page of locks shows, as its address tells."""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode

from django.core.exceptions import ImproperlyConfigured
from django.core.paginator import Paginator
from django.utils import timezone

from django_redlock import conf
from django_redlock.core.names import check_names
from django_redlock.core.reasons import describe
from django_redlock.inspection import patterns
from django_redlock.inspection.results import shown
from django_redlock.inspection.survey import LIMIT, survey
from django_redlock.inspection.tasks import list_tasks

from . import rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.core.paginator import Page
    from django.http import HttpRequest

    from django_redlock.backend import Backend
    from django_redlock.inspection.results import Survey
    from django_redlock.inspection.task_list import Task

REFRESH: Final = 3  # seconds after which the page's script asks for it again


class PageQuery(NamedTuple):
    """The query of the page's address; links repeat these fields and no others."""

    alias: str = ""
    q: str = ""
    p: str = ""
    t: str = ""
    finished: str = ""

    @classmethod
    def of(cls, request: HttpRequest) -> PageQuery:
        """Read the query of a request."""
        return cls(**{key: request.GET.get(key, "") for key in cls._fields})

    def link(self, **changes: str) -> str:
        """Return the query string of this page with some fields changed."""
        wanted = self._replace(**changes)._asdict()
        return f"?{urlencode({key: value for key, value in wanted.items() if value})}"


def look(asked: PageQuery, per_page: int) -> dict[str, Any]:
    """Survey an alias; return the context of the template."""
    context: dict[str, Any] = {}
    search = None
    try:
        search = _Search.of(asked.q)
    except ValueError as error:  # all that is held is shown instead
        asked = asked._replace(q="")
        context |= {"status": HTTPStatus.BAD_REQUEST, "refused": shown(str(error))}
    context |= {
        "asked": asked,
        "query": shown(asked.q),
        "now": timezone.now(),
        "refresh": REFRESH,
        "everything": asked.link(q="", p="", t=""),
        "finished_on": asked.link(finished="on", t=""),
        "finished_off": asked.link(finished="", t=""),
        "reload": asked.link(),
    }
    try:
        aliases = list(conf.aliases())
        if not aliases:
            return context | {"misconfigured": "REDLOCK names no alias: there is nothing to show."}
        alias = asked.alias or ("default" if "default" in aliases else aliases[0])
        context["aliases"] = [_choice(str(each), alias, asked) for each in aliases]
        backend = conf.backend(alias)
    except ImproperlyConfigured as error:
        return context | {"misconfigured": shown(str(error))}
    found = survey(backend, limit=LIMIT, memory=True)
    locks = list(found.locks)
    if search is not None:
        searched = search.among(backend, found)
        locks = [lock for lock in searched.locks if lock.on]
        context |= {"beyond": searched.beyond, "unsearched": searched.unsearched}
        context["refused"] = search.refused
    page = Paginator(locks, per_page).get_page(asked.p)
    return context | {
        "alias": shown(alias),
        "summary": describe(found.summary),
        "mood": rows.MOOD[found.health],
        "advice": [shown(describe(each)) for each in found.advice],
        "nodes": [rows.node(i, found) for i in range(len(found.nodes))],
        "rows": [rows.lock(lock, found) for lock in page.object_list],
        "page": page,
        "pages": list(_pages(page, asked, "p")),
        "total": len(found.locks),
        "truncated": found.truncated,
        "complete": found.complete,
        **_tasks(backend, found, asked, search, per_page),
    }


def _tasks(
    backend: Backend, found: Survey, asked: PageQuery, search: _Search | None, per_page: int
) -> dict[str, Any]:
    """List the tasks; return the context of their table."""
    tasks = list_tasks(
        backend,
        found.places,
        limit=LIMIT,
        finished=bool(asked.finished),
        matching=None if search is None else search.finds_task,
    )
    page = Paginator(tasks.tasks, per_page).get_page(asked.t)
    return {
        "tasks": [rows.task(task) for task in page.object_list],
        "task_page": page,
        "task_pages": list(_pages(page, asked, "t")),
        "more_tasks": tasks.beyond,
        "tasks_truncated": tasks.truncated,
        "has_tasks": bool(tasks.tasks or asked.finished or find_spec("celery")),
    }


def _choice(alias: str, chosen: str, asked: PageQuery) -> dict[str, Any]:
    link = asked.link(alias=alias, p="", t="")
    return {"name": shown(alias), "link": link, "chosen": alias == chosen}


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
            return cls(pattern, parts, frozenset(), shown(str(error)))
        return cls(pattern, parts, texts, "")

    def finds(self, text: str) -> bool:
        """Return True if the text contains the query or matches it."""
        texts = text.casefold(), shown(text).casefold()
        return any(part in each for part in self.parts for each in texts) or self.pattern.matches(
            text
        )

    def finds_task(self, task: Task) -> bool:
        """Return True if its name, its id, or what it locks is found."""
        return any(map(self.finds, (task.task, task.task_id, *task.names)))

    def among(self, backend: Backend, found: Survey) -> Survey:
        """Find locks in a survey without a search; it may be truncated."""
        if found.truncated:
            return survey(backend, sorted(self.names), limit=LIMIT, matching=self.finds)
        locks = [lock for lock in found.locks if self.finds(lock.name)]
        unknown = self.names - {lock.name for lock in locks}
        if unknown:
            locks = [*survey(backend, sorted(unknown)).locks, *locks]
        return replace(found, locks=tuple(locks))


def _pages(page: Page[Any], asked: PageQuery, field: str) -> Iterator[dict[str, Any]]:
    """Yield the page numbers to choose from, the omitted ones without a link."""
    if page.paginator.num_pages > 1:
        for number in page.paginator.get_elided_page_range(page.number):
            link = asked.link(**{field: str(number)}) if isinstance(number, int) else ""
            yield {"number": number, "link": link, "chosen": number == page.number}
