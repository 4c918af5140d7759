"""Play five acts and print a verdict; the exit status is 0 if everything held."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise

from . import endings, stage
from .crowd import REFUSED, Crowd, Traffic
from .endings import tell
from .offices import OFFICES, Act, Offices
from .stage import Stage

OPEN_SECONDS = 8.0
KILL_AT = 3.0
SETTLE_SECONDS = 15.0
REHEARSAL_SECONDS = 2.0
KILL_AFTER = 0.5
WAIT_SECONDS = 60.0
WELCOME = f"""
django-redlock: a box office on five nodes

Acts 1 to 3: {OFFICES} ticket offices, each a process of its own, sell seats of one
show. To sell a seat they read the number sold, think, and write it plus one.
Two are frozen in the middle of that: with the lock and the fence, and with the
lock alone. In act 3 they have neither.
Act 4: the box office as a site. Its customers click twice, its clerks ask for
each report three times.
Act 5: a Celery task that is sent 20 times, and one whose process is killed.
"""


def main() -> int:
    print(WELCOME)
    with ExitStack() as stack:
        built = stage.build(stack)
        houses = stage.add_shows("Hamlet", "Hamlet, no fence", "Hamlet, no lock")
        shows = stage.add_shows(*stage.SHOWS)
        offices = stack.enter_context(Offices())
        offices.await_all("ready")
        built.open()
        acts = in_the_offices(houses, offices, built)
        built.let_vote()
        traffic = on_the_site(shows, built)
        trials = Trials(shows[0])
        wrong = [*(each for act in acts for each in act.failures()), *traffic.failures()]
        wrong += trials.failures()
        if built.servers.errors():
            wrong.append("requests failed in the web server (500)")
        print_figures(acts, traffic, trials)
        print(*wrong, built.servers.logs() if wrong else "", sep="\n")
    print("It did NOT hold." if wrong else "It held.")
    return 1 if wrong else 0


def in_the_offices(shows: Sequence[int], offices: Offices, built: Stage) -> list[Act]:
    """Play acts 1 to 3, each with a show of its own."""
    nodes = built.nodes

    def kill() -> None:
        nodes.kill(2)
        tell("node 3 is killed (SIGKILL): 4 of 5 are left, 3 are a majority")

    def hang() -> None:
        nodes.pause(4)
        tell("node 5 hangs (SIGSTOP): 3 of 5 are left, still a majority")

    fenced = Act("Act 1: with the lock and the fence", shows[0], 7.0, locked=True, fence=True)
    locked = Act("Act 2: with the lock alone", shows[1], 5.0, locked=True, fence=False)
    neither = Act("Act 3: with neither", shows[2], 3.0, locked=False, fence=False)
    offices.play(fenced, (1.0, kill), (2.0, hang), freezes=(3.0, 4.9))
    nodes.resume(4)
    nodes.restart(2)
    return [fenced, offices.play(locked, freezes=(0.5, 2.4)), offices.play(neither)]


def on_the_site(shows: Sequence[int], built: Stage) -> Traffic:
    """Play act 4."""
    tell("Act 4: the site, with four web processes and six workers")
    traffic, began = Traffic(), time.monotonic()
    with Crowd(built.servers.url, shows, traffic, customers=4, pause=0.3) as crowd:
        while (now := time.monotonic() - began) < OPEN_SECONDS:
            if now >= KILL_AT and not traffic.lost:
                built.nodes.kill(1)
                traffic.lost.append(time.monotonic())
                tell("node 2 is killed (SIGKILL): four are left, three are a majority")
            built.servers.check()
            endings.wait(0.25)
        crowd.leave()
        crowd.settle(SETTLE_SECONDS)
    traffic.audit()
    for line in traffic.figures():
        tell(line)
    return traffic


class Trials:
    """Act 5: a task is sent 20 times, and the process of another is killed."""

    def __init__(self, show_id: int) -> None:
        from django.utils import timezone

        from example_project.box_office import tasks, trials
        from example_project.box_office.models import Run, Show

        tell("Act 5: a task is sent 20 times; the process of another is killed")
        self.calls = trials.CALLS
        self.copies = trials.send_copies(Show.objects.get(pk=show_id))
        printed = tasks.print_posters.AsyncResult(self.copies["task_ids"][0])
        rehearsed = tasks.rehearse.delay(show_id, REHEARSAL_SECONDS)
        runs = Run.objects.filter(task_id=rehearsed.id)
        deadline = time.monotonic() + WAIT_SECONDS
        while not (printed.ready() and rehearsed.ready()) and time.monotonic() < deadline:
            first = runs.filter(killed=None, ended=None).first()
            if first and len(runs.all()) == 1:
                endings.wait(KILL_AFTER)
                runs.filter(pk=first.pk).update(killed=timezone.now())
                tell(f"process {first.pid} of the worker is killed (SIGKILL) in its task")
            endings.wait(0.1)
        self.states = printed.state, rehearsed.state
        self.bodies = Run.objects.filter(task_id__in=self.copies["task_ids"]).count()
        self.runs = list(runs.all())
        self.late = [each for run in self.runs if (each := run.late()) is not None]
        for each in self.late:
            tell(f"another one takes it over after {each:.1f} s (ttl {tasks.REHEARSAL_TTL:g} s)")

    def failures(self) -> Iterator[str]:
        """Yield what did not hold; nothing if all did."""
        if (self.copies["sent"], self.bodies, self.states) != (1, 1, ("SUCCESS", "SUCCESS")):
            yield f"a task that was sent {self.calls} times ran {self.bodies} times: {self.states}"
        # After how many seconds is a figure: a busy machine takes a while to begin.
        if len(self.late) != 1 or any(a.fence >= b.fence for a, b in pairwise(self.runs)):
            yield f"a killed process's task was taken over {len(self.late)} times"


def print_figures(acts: Sequence[Act], traffic: Traffic, trials: Trials) -> None:
    count = traffic.counts
    locked = acts[:2]
    rows: list[tuple[object, ...]] = [
        ("ticket offices", "lock and fence", "lock alone", "neither"),
        ("sales, counted by the offices", *(len(act.sales) for act in acts)),
        ("seats sold, says the row", *(act.row for act in acts)),
        ("lost updates: seats sold twice", *(act.lost_updates() for act in acts)),
        ("stale writes refused by the row", *(len(act.refused) for act in locked), "-"),
        ("offices frozen past their ttl", *(len(act.frozen) for act in acts)),
        ("sales overlapping another", *(act.overlaps() for act in acts)),
        ("fences increase with each holder", *(act.fences_increase() for act in locked), "-"),
        (),
        ("site", "with the lock", "without"),
        ("double clicks of customers", count["with"], count["without"]),
        ("orders in the database", *traffic.orders),
        ("orders taken twice", *traffic.twice),
        ("second clicks refused (409)", count["with", REFUSED], count["without", REFUSED]),
        ("second exports refused (409)", count["export", REFUSED], "-"),
        ("reports asked for, built, skipped", *(count[e] for e in ("asked", "built", "skipped"))),
        ("two runs of one report at once", traffic.together, "-"),
        ("refused: no majority (503)", len(traffic.unavailable), "-"),
        ("refused (503) while no node failed", traffic.unexplained(), "-"),
        (),
        ("tasks",),
        ("calls of one task", trials.calls),
        ("messages sent for them", trials.copies["sent"]),
        ("bodies run for them", trials.bodies),
        ("runs of a task that is killed once", len(trials.runs)),
        ("seconds from kill to take-over", ", ".join(f"{each:.1f}" for each in trials.late)),
    ]
    print()
    for row in rows:
        print("  " + "".join(f"{each!s:>16}" if n else f"{each:<36}" for n, each in enumerate(row)))
    print()
