"""Play five acts and print a verdict; the exit status is 0 if everything held."""

import time
from contextlib import ExitStack

from . import offices, stage, tasks
from .crowd import Crowd, audit
from .facts import Acts, Traffic, office_failures, traffic_failures
from .offices import OFFICES
from .screen import Screen
from .servers import ServerError
from .staff import Staff
from .stage import Stage

FRAME_SECONDS = 0.25
OPEN_SECONDS = 8.0
KILL_AT = 3.0
SETTLE_SECONDS = 15.0
WELCOME = f"""\
Acts 1 to 3: {OFFICES} ticket offices, each a process of its own, sell seats of one
show. To sell a seat they read the number sold, think, and write it plus one.
Some are frozen in the middle of that: with the lock and the fence, with the
lock alone, and with neither.
Act 4: the box office as a site. Its customers click twice, its clerks ask for
each report three times.
Act 5: a Celery task that is sent 20 times, and one whose process is killed."""


def main() -> int:
    screen = Screen()
    screen.welcome(WELCOME)
    try:
        with ExitStack() as stack:
            with screen.busy(stage.STARTING) as tell:
                built = stage.build(stack, tell=tell)
                houses = stage.add_shows("Hamlet", "Hamlet, no fence", "Hamlet, no lock")
                shows = stage.add_shows(*stage.SHOWS)
                tell(f"Starting {OFFICES} ticket offices")
                staff = stack.enter_context(Staff(OFFICES, built.home))
                staff.await_ready()
                built.open()
            acts = in_the_offices(houses, staff, built, screen)
            built.let_vote()
            traffic = on_the_site(shows, built, screen)
            with screen.lines(tasks.TITLE, tasks.SUBTITLE) as tell:
                outcome = tasks.play(shows[0], tell)
            wrong = [
                *office_failures(acts),
                *traffic_failures(traffic),
                *tasks.failures(outcome),
            ]
            logs = built.servers.logs()
    except SystemExit:
        screen.line("\nStopped. Nothing is left running.")
        raise
    except ImportError as error:
        screen.missing(error)
        return 1
    except ServerError as error:
        screen.failed(error)
        return 1
    screen.summary(acts, traffic, tasks.rows(outcome), wrong)
    if wrong:
        screen.line(logs)
    return 1 if wrong else 0


def in_the_offices(shows: list[int], staff: Staff, built: Stage, screen: Screen) -> Acts:
    """Play acts 1 to 3, each with a show of its own."""
    fenced = offices.with_the_fence(shows[0], staff, built.nodes, screen)
    built.nodes.resume(4)
    built.nodes.restart(2)
    locked = offices.with_the_lock(shows[1], staff, built.nodes, screen)
    neither = offices.with_neither(shows[2], staff, built.nodes, screen)
    return Acts(fenced, locked, neither)


def on_the_site(shows: list[int], built: Stage, screen: Screen) -> Traffic:
    """Play act 4."""
    traffic = Traffic()
    crowd = Crowd(built.servers.url, shows, traffic, customers=4, pause=0.3)
    with screen.site(traffic, built.nodes) as draw, crowd:
        while (now := time.monotonic() - traffic.began) < OPEN_SECONDS:
            if now >= KILL_AT and not traffic.lost_nodes:
                built.nodes.kill(1)
                traffic.lose_node(stage.KILLED)
            built.servers.check()
            audit(traffic)
            draw()
            time.sleep(FRAME_SECONDS)
        crowd.leave()
        crowd.settle(SETTLE_SECONDS)
        audit(traffic)
        traffic.errors = built.servers.errors()
        draw()
    return traffic
