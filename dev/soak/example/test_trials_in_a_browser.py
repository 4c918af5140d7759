"""The pages with trials of the running demo, in a real browser; nothing is replaced.

A task goes 20 times through the demo's broker to its worker, and a child process of that worker is
killed: the database, the process table and the page must agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from example_project.box_office.tasks import REHEARSAL_TTL
from tests.support.waiting import eventually, slowness

from .running_demo import PATIENCE, processes
from .visitors import TITLE, Demo, Person, query

PAGE = "Three trials with tasks"
LINE = re.compile(r"started in process (\d+) with fence (\d+)")
LATE = re.compile(r"([\d.]+) s after the kill; ttl ([\d.]+) s")
PAUSE = 4.0  # seconds at most after which a message comes back, the third time
MOMENT = 1.5  # seconds in which a free process begins once the lock has expired


class Run(NamedTuple):
    """A run of a task, as the database of the demo has it."""

    pid: int
    fence: int


def runs(demo: Demo, task_id: str) -> list[Run]:
    """All runs of the message with this id."""
    found = query(
        demo,
        "SELECT pid, fence FROM box_office_run WHERE task_id = ? ORDER BY id",
        task_id.replace("\n", ""),
    )
    return [Run(*each) for each in found]


def rehearsals(demo: Demo) -> list[Run]:
    """All runs of rehearsals."""
    sql = "SELECT pid, fence FROM box_office_run WHERE task LIKE '%rehearse' ORDER BY id"
    return [Run(*each) for each in query(demo, sql)]


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(") ")[2][0] != "Z"


def parent(pid: int) -> int:
    """The process id of the parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


@pytest.fixture
def person(staff: Person, come: Callable[[], Person]) -> Iterator[Person]:
    """A customer on the page with tasks of a show of its own."""
    assert staff.refused == []
    person = come()
    person.open(TITLE)
    person.page.get_by_role("link", name="Send a task 20 times").click()
    person.page.wait_for_selector(f"h1:text-is('{PAGE}')")
    yield person
    person.page.goto("/")  # its page looks at the show, which is deleted in a moment
    assert person.refused == []


def press(person: Person, name: str) -> str:
    """Press a button by the keyboard; what the site then says. The button keeps the focus."""
    button = person.page.get_by_role("button", name=name, exact=True)
    person.page.evaluate("document.getElementById('messages').replaceChildren()")
    button.focus()
    person.page.keyboard.press("Enter")
    person.page.wait_for_selector("#messages .message")
    assert person.page.evaluate("document.activeElement.innerText") == name
    return person.page.inner_text("#messages")


def facts(person: Person) -> dict[str, str]:
    """The figures of the first trial on the page."""
    told = person.page.locator("#copies li")
    return {
        each.locator("span").inner_text(): each.locator("strong").inner_text()
        for each in told.all()
    }


def timeline(person: Person) -> str:
    """The second trial on the page."""
    return person.page.inner_text("#timeline")


def test_a_lock_that_is_taken_away_in_the_admin_stops_its_task(staff, person):
    """The page leads to the lock; the task learns of it, and the name is free then."""
    assert press(person, "Start a long rehearsal") == "A rehearsal was sent."
    person.page.wait_for_selector("#timeline >> text=started in process")
    link = person.page.get_by_role("link", name="the lock in the admin").get_attribute("href")
    staff.page.goto(link)
    staff.page.fill("#id_reason", "the stage is needed")
    staff.press("Take it away")
    person.page.wait_for_selector("#timeline >> text=stopped, its lock is lost (revoked)")
    assert "the stage is needed" not in timeline(person)  # what staff writes is for staff
    eventually(lambda: person.page.inner_text("#lock") == "The lock is free.", within=PATIENCE)


def test_a_form_that_is_sent_again_after_back_gets_its_first_answer(come, staff):
    """The same number and time, and one order; a new form is another order."""
    person = come()
    person.open(TITLE)
    person.page.get_by_role("link", name="Send a form again").click()
    answers = []
    for name in ("Ada", None, "Ada"):  # by a new form, after Back as it was, by a new form
        if name:
            person.page.fill("#id_name", name)
        person.press("Buy a ticket")
        answers.append(person.page.inner_text("main"))
        if len(answers) == 1:
            person.page.go_back()
            person.page.wait_for_selector("#bought >> text=for Ada")  # it has looked since
        elif len(answers) == 2:
            person.page.get_by_role("link", name="A new form").click()
    first, second, third = answers
    assert first == second != third
    person.page.go_back()
    eventually(lambda: person.page.locator("#bought time").count() == 2, within=PATIENCE)
    assert person.refused == staff.refused == []
    person.page.goto("/")  # the show is deleted in a moment


def test_of_two_servers_one_runs_the_job(come, staff):
    """Both are real commands of the site's own project; the other one exits with 75."""
    person = come()
    person.open(TITLE)
    person.page.get_by_role("link", name="Send a form again").click()
    person.page.get_by_role("button", name="Start it on 2 servers").click()
    person.page.wait_for_selector("#job >> text=ran the job")
    told = person.page.inner_text("#job")
    assert "did nothing: the other one has the lock" in told
    assert ("exit status 0" in told, "exit status 75" in told) == (True, True)
    assert person.refused == staff.refused == []
    person.page.goto("/")


def test_a_task_that_is_sent_20_times_runs_once(demo, person):
    """20 calls: one message, 19 duplicates with its id, one body, and its result."""
    assert press(person, "Send it 20 times") == "Called 20 times: 1 sent, 19 duplicates."
    person.page.wait_for_selector("#copies >> text=posters printed")
    told = facts(person)
    task_id = told.pop("task id that all calls got")
    ((pid, _),) = runs(demo, task_id)
    assert told == {
        "calls": "20",
        "messages sent to the broker": "1",
        "duplicates, not sent": "19",
        "bodies run": "1",
        "result": f"posters printed by process {pid}",
    }
    assert "worker" in processes(demo.home)[pid]

    press(person, "Send it 20 times")  # it has ended: another one is sent
    person.page.wait_for_selector("#copies >> text=posters printed")
    assert facts(person)["task id that all calls got"] != task_id


def test_a_killed_process_is_relieved_when_its_lock_is_over(demo, person):
    """The killed process is a child of the worker; another finds its lock free and begins."""
    told = "No rehearsal is running. Nothing was killed."
    assert press(person, "Kill its process") == told
    before = processes(demo.home)
    slow = slowness()
    assert press(person, "Start a rehearsal") == "A rehearsal was sent."
    person.page.wait_for_selector("#timeline >> text=started in process")
    ((pid, fence),) = LINE.findall(timeline(person))
    assert "celery" in before[int(pid)]
    worker = parent(int(pid))

    assert press(person, "Start a rehearsal") == "A rehearsal is under way already."
    assert press(person, "Kill its process") == f"Process {pid} is killed."
    eventually(lambda: not is_alive(int(pid)), within=PATIENCE)
    assert f"process {pid} was killed (SIGKILL)" in timeline(person)
    assert "The lock expires in" in person.page.inner_text("#lock")

    person.page.wait_for_selector("#timeline >> text=after the kill")
    (_, (other, higher)) = LINE.findall(timeline(person))
    ((late, ttl),) = LATE.findall(timeline(person))
    assert (is_alive(worker), parent(int(other))) == (True, worker)
    assert other != pid
    assert int(higher) > int(fence)
    assert float(ttl) == REHEARSAL_TTL
    slow = max(slow, slowness())
    assert 0 < float(late) <= REHEARSAL_TTL + PAUSE + MOMENT * slow

    person.page.wait_for_selector(f"#timeline >> text=rehearsed by process {other}")
    assert rehearsals(demo)[-2:] == [Run(int(pid), int(fence)), Run(int(other), int(higher))]
    assert timeline(person).count("ended in process") == 1
    assert press(person, "Kill its process") == told
    gone = set(before) - set(processes(demo.home))
    assert {each for each in gone if "celery" in before[each]} == {int(pid)}
    eventually(lambda: person.page.inner_text("#lock") == "The lock is free.", within=PATIENCE)
