"""Start what the demo needs: nodes, a broker, a database, a worker and a web server."""

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import django
from django.core.management import call_command

from django_redlock.testing import EmbeddedNode, EmbeddedNodes

from . import endings
from .servers import Servers

# A new node has no vote until it is older than MAX_TTL: a short one lets everything begin soon.
OPTIONS = {"TTL": 3, "MAX_TTL": 3, "CLOCK_SKEW": 0.1, "NODE_TIMEOUT": 0.5}
USER, PASSWORD = "admin", "demo"
LOCKS_PAGE = "admin/django_redlock/lockkey/"
SHOWS = ("The Cherry Orchard", "Waiting for Godot", "The Seagull")


@dataclass
class Stage:
    nodes: EmbeddedNodes
    servers: Servers
    options: Mapping[str, float]
    switch: Path  # the socket on which the site asks for a node to be killed

    def open(self) -> None:
        """Wait until the nodes vote, the site responds and the worker takes messages.

        In this order: a process that meets a node before that votes gets its vote later than
        others do.
        """
        endings.tell("Waiting until the nodes are old enough to vote: four seconds")
        self.let_vote()
        endings.tell("Waiting for the web server and the Celery worker")
        self.servers.await_ready()

    def let_vote(self) -> None:
        """Wait until every node that runs is old enough to vote."""
        self.nodes.settings(**self.options)


def build(
    stack: ExitStack, options: Mapping[str, float] = OPTIONS, *, buttons: bool = False
) -> Stage:
    """Start everything and make the database; all of it ends with the stack.

    Args:
        options: of the locks.
        buttons: whether visitors of the site may kill nodes; inside of `timetable.served` then.
    """
    endings.tell("Starting five nodes, a broker, a web server and a Celery worker")
    home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="redlock-demo-")))
    nodes = stack.enter_context(EmbeddedNodes(5))
    broker = stack.enter_context(closing(EmbeddedNode({"save": ""})))
    broker.start()
    switch = home / "switch"
    os.environ["EXAMPLE_DB"] = str(home / "box_office.sqlite3")
    os.environ["REDLOCK_NODES"] = ",".join(nodes.urls)
    os.environ["REDLOCK_OPTIONS"] = json.dumps(options)
    os.environ["BROKER_URL"] = broker.url
    os.environ["DEMO_SWITCH"] = str(switch) if buttons else ""
    django.setup()
    call_command("migrate", verbosity=0)
    servers = Servers(home)
    stack.callback(servers.end)
    servers.start()
    return Stage(nodes, servers, options, switch)


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
