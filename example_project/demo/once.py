"""Three acts and a verdict. It ends by itself; the exit status is 0 if everything held."""

import time
from contextlib import ExitStack

from . import offices, stage
from .crowd import Crowd, audit
from .facts import Traffic, lock_failures, traffic_failures
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
Acts 1 and 2: {OFFICES} ticket offices, each a process of its own, sell seats of one
show. To sell a seat they read the number sold, think, and write it plus one.
Act 3: the box office as a site. Its customers click twice, its clerks ask for
each report three times."""


def main() -> int:
    screen = Screen()
    screen.welcome(WELCOME)
    try:
        with ExitStack() as stack:
            with screen.busy(f"{stage.STARTING}, and {OFFICES} ticket offices"):
                built = stage.build(stack)
                hamlet, again, *shows = stage.add_shows(
                    "Hamlet, with the lock", "Hamlet, without it", *stage.SHOWS
                )
                staff = stack.enter_context(Staff(OFFICES, built.home))
                staff.await_ready()
                built.open()
            locked = offices.with_the_lock(hamlet, staff, built.nodes, screen)
            built.nodes.resume(4)
            built.nodes.restart(2)
            unlocked = offices.without_it(again, staff, built.nodes, screen)
            with screen.busy("Both nodes are back; the new one gets its vote in a moment"):
                built.let_vote()
            traffic = on_the_site(shows, built, screen)
            wrong = [*lock_failures(locked, unlocked), *traffic_failures(traffic)]
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
    screen.summary(locked, unlocked, traffic, wrong)
    if wrong:
        screen.line(logs)
    return 1 if wrong else 0


def on_the_site(shows: list[int], built: Stage, screen: Screen) -> Traffic:
    """Act 3."""
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
