"""Start what the demo needs: nodes, a broker, a database, a worker and a web server."""

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import django
from django.core.management import call_command

from django_redlock.testing import EmbeddedNode, EmbeddedNodes

from .facts import Addresses
from .servers import Servers
from .switch import Switch

# A new node has no vote until it is older than MAX_TTL: a short one lets everything begin soon.
OPTIONS = {"TTL": 3, "MAX_TTL": 3, "CLOCK_SKEW": 0.1, "NODE_TIMEOUT": 0.5}
USER, PASSWORD = "admin", "demo"
LOCKS_PAGE = "admin/django_redlock/lockkey/"
SHOWS = ("The Cherry Orchard", "Waiting for Godot", "The Seagull")
TIMETABLE = "timetable"  # the file
KILLED = "node 2 is killed (SIGKILL): four are left, three are a majority"
STARTING = "Starting five nodes and a broker"

Tell: TypeAlias = Callable[[str], None]  # what is waited for


@dataclass
class Stage:
    nodes: EmbeddedNodes
    servers: Servers
    home: Path
    options: Mapping[str, float]
    switch: Switch | None  # on which the site asks for a node to be killed
    tell: Tell

    def open(self) -> None:
        """Wait until the nodes vote, the site responds and the worker takes messages.

        In this order: a process that meets a node before that votes gets its vote later than
        others do.
        """
        self.tell("Waiting until the nodes are old enough to vote: four seconds after their start")
        self.let_vote()
        self.tell("Waiting for the web server and the Celery worker")
        self.servers.await_ready()

    def addresses(self) -> Addresses:
        """Return where people find the site, and how they log in."""
        url = self.servers.url
        return Addresses(url, f"{url}{LOCKS_PAGE}", USER, PASSWORD)

    def publish(self, outlook: Iterable[str]) -> None:
        """Let the site tell what happens to the nodes next: a sentence in each line."""
        new = self.home / "timetable.new"
        new.write_text("\n".join(outlook), encoding="utf-8")
        new.replace(self.home / TIMETABLE)  # nobody reads half of it

    def let_vote(self) -> None:
        """Wait until every node that runs is old enough to vote."""
        self.nodes.settings(**self.options)


def build(
    stack: ExitStack,
    options: Mapping[str, float] = OPTIONS,
    *,
    buttons: bool = False,
    tell: Tell = lambda _: None,
) -> Stage:
    """Start everything and make the database; all of it ends with the stack.

    Args:
        options: of the locks.
        buttons: whether visitors of the site may kill nodes; the `switch` must be served then.
        tell: is called with what is waited for.
    """
    home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="redlock-demo-")))
    nodes = stack.enter_context(EmbeddedNodes(5))
    broker = stack.enter_context(closing(EmbeddedNode({"save": ""})))
    broker.start()
    os.environ["EXAMPLE_DB"] = str(home / "box_office.sqlite3")
    os.environ["REDLOCK_NODES"] = ",".join(nodes.urls)
    os.environ["REDLOCK_OPTIONS"] = json.dumps(options)
    os.environ["BROKER_URL"] = broker.url
    os.environ["DEMO_TIMETABLE"] = str(home / TIMETABLE)
    path = home / "switch"
    switch = stack.enter_context(Switch(path)) if buttons else None
    os.environ["DEMO_SWITCH"] = str(path) if buttons else ""
    tell("Making the database")
    django.setup()
    call_command("migrate", verbosity=0)
    tell("Starting a web server and a Celery worker")
    servers = stack.enter_context(Servers(home))
    return Stage(nodes, servers, home, options, switch, tell)


def add_login() -> None:
    from django.contrib.auth.models import User

    User.objects.create_superuser(USER, password=PASSWORD)


def add_shows(*titles: str) -> list[int]:
    """Add shows with these titles, and their seats; return their numbers."""
    from example_project.box_office.models import Show

    shows = [Show.objects.create(title=title) for title in titles]
    for show in shows:
        show.add_seats()
    return [show.pk for show in shows]
