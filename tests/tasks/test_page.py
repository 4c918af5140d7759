"""What the page "Lock one of Django's tasks" says."""

from __future__ import annotations

import pytest

pytest.importorskip("django.tasks", reason="Django 6 has tasks")
pytest.importorskip("django_tasks_db")

import inspect
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from types import ModuleType
from typing import Any

from django.test import RequestFactory, override_settings
from django.utils import timezone

from django_redlock import celery
from django_redlock.tasks import locked_task
from django_redlock.work.options import OPTIONS
from tests.celery.desk import hold
from tests.docs.pages import ROOT, blocks, table

PAGE = ROOT / "docs/how-to/tasks.md"


@pytest.fixture
def page(desk: Any) -> Iterator[dict[str, Any]]:
    """The modules of the page, by the names of their files, under the settings of the page."""
    texts: dict[str, str] = defaultdict(str)
    for block in blocks(PAGE, nested=True):
        if block.language == "python":
            texts[block.text.splitlines()[0].removeprefix("# ")] += block.text
    settings: dict[str, Any] = {}
    exec(texts.pop("mysite/settings.py"), settings)  # noqa: S102 - our own page
    made: dict[str, Any] = {"reports": ModuleType("reports")}
    with override_settings(TASKS=settings["TASKS"]), pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "reports", made["reports"])
        vars(made["reports"])["__path__"] = []
        for path, text in sorted(texts.items()):
            name = path.removesuffix(".py").replace("/", ".")
            made[path] = vars(made["reports"])[name.partition(".")[2]] = module = ModuleType(name)
            vars(module)["__package__"] = "reports"
            patch.setitem(sys.modules, name, module)
            exec(text, vars(module))  # noqa: S102 - our own page
        yield made


def test_the_examples_of_the_page_run(page, desk):
    """The tasks are locked, enqueued once, cleared and run again."""
    tasks, views = page["reports/tasks.py"], page["reports/views.py"]
    names = {"build_report": "report 1", "fetch_feed": "feed of shop 1"}
    names |= {"sync_account": "account 1", "index_shop": "shop 1"}
    results = {name: getattr(tasks, name).enqueue(1) for name in names}
    assert tasks.sync_account.enqueue(1).id == results["sync_account"].id
    said = json.loads(views.clear(RequestFactory().get("/"), 1).content)
    assert said == {"cleared": 1}
    assert tasks.sync_account.enqueue(1).id != results["sync_account"].id
    desk.work()
    for name, result in results.items():
        result.refresh()
        assert result.return_value == names[name]
    with hold("report:1"):
        skipped = tasks.build_report.enqueue(1)
        desk.work()
    skipped.refresh()
    assert set(skipped.return_value) == {"skipped", "reason", "retry_after"}
    long_ago = timezone.now() - timedelta(hours=3)
    desk.rows(id=skipped.id).update(status="RUNNING", started_at=long_ago)
    assert page["reports/repair.py"].run_again() == 1


@pytest.mark.parametrize("option", ["on_conflict", "mode", "on_duplicate"])
def test_the_tables_have_the_values_of_celerys(option):
    """One name, one option, the same values."""
    values = [table(f"docs/how-to/{name}.md", f"`{option}`").rows for name in ("celery", "tasks")]
    assert len({tuple(row[0] for row in rows) for rows in values}) == 1


def test_the_options_are_those_of_celery():
    """To a type checker, and to who makes a mistake; ``test_tables`` has the page of both."""
    own, other = map(inspect.signature, (locked_task, celery.locked_task))
    assert own == other
    for each in (locked_task, celery.locked_task):
        given: Any = {"tll": 30}
        with pytest.raises(TypeError, match=f"it takes {', '.join(OPTIONS)}"):
            each("x", **given)
