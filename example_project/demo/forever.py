"""Keep the site open until Ctrl-C: customers come, nodes die and come back."""

import signal
import time
from contextlib import ExitStack

from django_redlock import conf
from django_redlock.inspection import Health, survey

from . import stage
from .crowd import Crowd, audit
from .facts import Traffic
from .screen import Screen
from .servers import ServerError
from .tasks import News
from .timetable import Timetable

FRAME_SECONDS = 0.5
WELCOME = """\
A Django site of four processes, and a Celery worker of six. Customers order
by double click, clerks ask for each report three times, and every now and
then the demo kills a node or lets one hang. Open the site: its first page has
an order form with the lock and one without, buttons that kill nodes, let them
hang and bring them back, and the code behind each button. The page of each
show leads to two trials with tasks: one is sent 20 times, the process of one
killed."""


def main() -> int:
    screen = Screen()
    screen.welcome(WELCOME)
    try:
        with ExitStack() as stack:
            with screen.busy(stage.STARTING) as tell:
                built = stage.build(stack, buttons=True, tell=tell)
                stage.add_login()
                shows = stage.add_shows(*stage.SHOWS)
                built.open()
            run(built, shows, screen)
    except SystemExit as ending:
        screen.line("Stopped. Nothing is left running.")
        if ending.code == 128 + signal.SIGINT:  # the usual end
            return 0
        raise
    except ImportError as error:
        screen.missing(error)
    except ServerError as error:
        screen.failed(error)
    return 1


def run(built: stage.Stage, shows: list[int], screen: Screen) -> None:
    assert built.switch is not None
    traffic, news = Traffic(), News()
    timetable = Timetable(built.nodes, traffic, traffic.began)
    crowd = Crowd(built.servers.url, shows, traffic, customers=2, pause=1.0)
    try:
        with crowd, screen.open_house(traffic, built.addresses()) as draw:
            while True:
                now = time.monotonic()
                timetable.look(now)
                built.publish(timetable.outlook(now))
                built.servers.check()
                audit(traffic)
                for text in news.read():
                    traffic.note(text)
                traffic.errors = built.servers.errors()
                found = survey(conf.backend("default"))
                if timetable.rests(now) and found.health is Health.NO_MAJORITY:
                    traffic.lack_majority()
                draw(found)
                built.switch.serve(FRAME_SECONDS, timetable.carry_out)
    except SystemExit:
        if traffic.errors or traffic.complaints:
            screen.line(built.servers.logs())
        raise
