"""The site is open until Ctrl-C: customers come, reports are asked for, nodes die and come back."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from typing import TypeAlias

from django_redlock import conf
from django_redlock.inspection.survey import survey
from django_redlock.testing import EmbeddedNodes

from . import stage
from .crowd import Crowd, audit
from .facts import Traffic
from .screen import Screen
from .servers import ServerError

FRAME_SECONDS = 0.5
PERIOD = 70.0  # seconds after which the nodes' troubles begin again
WELCOME = """\
A Django site of four processes, and a Celery worker of four. Customers order
by double click, clerks ask for each report three times, now and then a node
dies."""

Trouble: TypeAlias = Callable[[EmbeddedNodes, Traffic], None]


def main() -> int:
    screen = Screen()
    screen.welcome(WELCOME)
    try:
        with ExitStack() as stack:
            with screen.busy(stage.STARTING):
                built = stage.build(stack)
                stage.add_login()
                shows = stage.add_shows(*stage.SHOWS)
                built.open()
            run(built, shows, screen)
    except SystemExit as ending:
        screen.line("Stopped. Nothing is left running.")
        if ending.code == 128 + signal.SIGINT:  # how it is meant to end
            return 0
        raise
    except ImportError as error:
        screen.missing(error)
    except ServerError as error:
        screen.failed(error)
    return 1


def run(built: stage.Stage, shows: list[int], screen: Screen) -> None:
    traffic = Traffic()
    due = troubles()
    at, happen = next(due)
    crowd = Crowd(built.servers.url, shows, traffic, customers=2, pause=1.0)
    try:
        with crowd, screen.open_house(traffic, built.addresses()) as draw:
            while True:
                if time.monotonic() - traffic.began >= at:
                    happen(built.nodes, traffic)
                    at, happen = next(due)
                built.servers.check()
                audit(traffic)
                traffic.errors = built.servers.errors()
                draw(survey(conf.backend("default")))
                time.sleep(FRAME_SECONDS)
    except SystemExit:
        if traffic.errors or traffic.complaints:
            screen.line(built.servers.logs())
        raise


def troubles() -> Iterator[tuple[float, Trouble]]:
    """What happens to the nodes, and when."""
    for round_ in count():
        for at, down_reason in [(10, kill), (25, restart), (45, hang), (55, wake)]:
            yield round_ * PERIOD + at, down_reason


def kill(nodes: EmbeddedNodes, traffic: Traffic) -> None:
    nodes.kill(1)
    traffic.lose_node(stage.KILLED)


def restart(nodes: EmbeddedNodes, traffic: Traffic) -> None:
    nodes.restart(1)
    traffic.note("node 2 is back, empty: no vote until all it may have granted is over")


def hang(nodes: EmbeddedNodes, traffic: Traffic) -> None:
    nodes.pause(3)
    traffic.lose_node("node 4 hangs (SIGSTOP): it is not waited for")


def wake(nodes: EmbeddedNodes, traffic: Traffic) -> None:
    nodes.resume(3)
    traffic.note("node 4 goes on")
