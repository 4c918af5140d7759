"""A running demo, and people who come to its site; the example on nodes in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery.backends.cache import CacheBackend
from kombu.simple import SimpleQueue

from example_project.box_office import tasks
from example_project.celery import app as celery_app
from tests.example.conftest import nodes, show
from tests.support.pages.chromium import CHROMIUM, QUIETLY, need, why_not

from .running_demo import await_line, demo_home, started, web_log
from .visitors import SURE, TITLE, Demo, Person

__all__ = ["nodes", "show"]


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    """A running demo."""
    need("the demo", why_not())
    with demo_home() as home, started(home) as process:
        site = await_line(process, "Site").split()[1]
        _, _, user, _, password = await_line(process, "Log in").split()
        yield Demo(site, user, password, home)
        assert process.poll() is None


@pytest.fixture
def people() -> list[Person]:
    """All who have come to the site."""
    return []


@pytest.fixture
def come(demo: Demo, people: list[Person]) -> Iterator[Callable[..., Person]]:
    """Come to the site with a browser of your own. Whatever happens, the site must not fail."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIETLY)

        def come(**options: Any) -> Person:
            people.append(Person(browser, demo, **options))
            return people[-1]

        yield come
        for person in people:
            # A request that is under way would be answered by a page that is gone.
            person.context.unroute_all(behavior="ignoreErrors")
            person.context.close()
        browser.close()
    log = web_log(demo.home)
    print(f"The web server's log:\n{log}")  # pytest shows it if the test has failed
    for fault in ("Internal Server Error", "Not Found", "Traceback"):
        assert fault not in log


@pytest.fixture
def staff(come: Callable[[], Person], people: list[Person]) -> Iterator[Person]:
    """A staff user who has added a show; the test's end deletes the show."""
    person = come()
    person.page.goto("/")
    person.log_in()
    person.page.goto("/admin/box_office/show/add/")
    person.page.fill("#id_title", TITLE)
    person.save()
    yield person
    for each in people:  # the page of the show looks again and again, and would find it gone
        each.page.goto("about:blank")
    person.page.goto("/admin/box_office/show/")
    person.page.get_by_role("link", name=TITLE, exact=True).first.click()
    person.page.get_by_role("link", name="Delete", exact=True).click()
    person.save(SURE)


@pytest.fixture
def queue() -> Iterator[SimpleQueue]:
    """The queue of the example's worker, at a broker in memory."""
    celery_app.conf.broker_url = "memory://"
    with celery_app.connection_for_read() as connection:
        queue = connection.SimpleQueue("celery")
        queue.clear()
        yield queue
        queue.clear()


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> CacheBackend:
    """The results of the example's tasks, in memory."""
    backend = CacheBackend(app=celery_app, url="memory://")
    for task in (tasks.print_posters, tasks.rehearse, tasks.build_report):
        monkeypatch.setattr(task, "_backend", backend)
    return backend
