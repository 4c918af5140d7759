"""Keep the site open until Ctrl-C: customers come, nodes die and come back."""

import time
from contextlib import ExitStack

from . import endings, stage, timetable
from .crowd import Crowd, Traffic
from .endings import tell

EVERY = 20.0  # seconds between two lines of figures
WELCOME = """
django-redlock: a box office on five nodes

A Django site of four processes, and a Celery worker of six. Customers order
by double click, clerks ask for each report three times, and every now and
then the demo kills a node or lets one hang. Open the site: its first page has
an order form with the lock and one without, buttons that kill nodes, let them
hang and bring them back, and the code behind each button. The page of each
show has numbered seats, and leads to five trials: a task is sent 20 times,
the process of one is killed, and the lock of one is taken away in the admin;
a form is sent again after Back; cron starts one job on two servers.
"""


def main() -> int:
    print(WELCOME)
    with ExitStack() as stack:
        built = stage.build(stack, buttons=True)
        stage.add_login()
        shows = stage.add_shows(*stage.SHOWS)
        built.open()
        url = built.servers.url
        print(
            f"\n  Site    {url}   Ctrl-C ends everything.\n"
            f"  Locks   {url}{stage.LOCKS_PAGE}\n"
            f"  Log in  {stage.USER} / {stage.PASSWORD}\n",
            flush=True,
        )
        troubles, traffic = timetable.Timetable(built.nodes), Traffic()
        stack.enter_context(timetable.served(built.switch, troubles.answer))
        crowd = stack.enter_context(Crowd(url, shows, traffic, customers=2, pause=1.0))
        due = time.monotonic() + EVERY
        try:
            while True:
                endings.wait(0.5)
                troubles.look()
                built.servers.check()
                if time.monotonic() > due:
                    due += EVERY
                    traffic.audit()
                    tell(url)
                    for line in traffic.figures():
                        tell(line)
        finally:
            print("Closing ...", flush=True)
            if built.servers.errors() or traffic.complaints:
                print("\n".join(traffic.complaints), built.servers.logs(), sep="\n")
            crowd.leave()
