import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import redis

from dev.soak.faults.busy import busy
from example_project.box_office.tasks import REHEARSAL_TTL
from example_project.demo.browser import Browser
from tests.support.waiting import slowness

from .running_demo import (
    PATIENCE,
    SECONDS,
    Terminal,
    await_line,
    demo_home,
    left_running,
    processes,
    started,
)

PAUSE = 4.0  # seconds at most after which a message comes back, the third time
MOMENT = 3.0  # seconds in which a free process begins once the lock has expired

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def home() -> Iterator[Path]:
    """The directory for all that the demo writes."""
    with demo_home() as home:
        yield home


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    """Start the demo with its stdout in a pipe."""
    with ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(started(home, *arguments))


def figures(output: str) -> dict[str, list[str]]:
    """The rows of the summary: a label, and a figure for each way to protect a row."""
    rows = (re.split(r"\s{2,}", line.strip()) for line in output.splitlines())
    return {row[0]: row[1:] for row in rows if len(row) in (2, 3, 4)}


def test_demo_shows_what_the_locks_are_good_for(home, start):
    """With the locks nothing overlaps, is lost or is done twice, without them much is.

    So it is on a busy machine, too, and no 503 comes but after a node's loss.
    """
    with busy(2):
        slow, began = slowness(), time.monotonic()
        demo = start("--once")
        output, complaints = demo.communicate(timeout=PATIENCE)
        took = time.monotonic() - began
        slow = max(slow, slowness())

    # A busy worker may begin late, and the package then warns that messages are not sent.
    complaints = re.sub(r"^\d+ messages of .* were not sent, .*\n", "", complaints)
    assert (demo.returncode, complaints) == (0, ""), output
    shown = figures(output)
    assert shown["refused (503) while no node failed"][0] == "0"
    sales, row = shown["sales, counted by the offices"], shown["seats sold, says the row"]
    lost = [int(count) for count in shown["lost updates: seats sold twice"]]
    assert lost == [int(sales[act]) - int(row[act]) for act in range(3)]
    assert (lost[0], lost[1] > 0, lost[2] > 0) == (0, True, True)
    assert shown["stale writes refused by the row"] == ["2", "0", "-"]
    assert shown["offices frozen past their ttl"] == ["2", "2", "0"]
    overlaps = [int(count) for count in shown["sales overlapping another"]]
    assert (overlaps[0], overlaps[1] > 0, overlaps[2] > 0) == (0, True, True)
    assert shown["fences increase with each holder"] == ["True", "True", "-"]

    clicks, orders = shown["double clicks of customers"], shown["orders in the database"]
    assert clicks[0] == orders[0] != "0"
    assert int(clicks[1]) < int(orders[1])
    assert shown["orders taken twice"][0] == "0"
    assert int(shown["second clicks refused (409)"][0]) >= int(clicks[0])
    assert shown["second clicks refused (409)"][1] == "0"
    messages, built, skipped = map(int, shown["reports asked for, built, skipped"])
    assert (built > 0, skipped > 0, built + skipped) == (True, True, messages)
    assert shown["two runs of one report at once"][0] == "0"
    assert shown["calls of one task"][0] == "20"
    assert shown["messages sent for them"][0] == "1"
    assert shown["bodies run for them"][0] == "1"
    assert shown["runs of a task that is killed once"][0] == "2"
    late = float(shown["seconds from kill to take-over"][0])
    assert 0 < late < REHEARSAL_TTL + PAUSE + MOMENT * slow
    assert took < SECONDS * slow
    assert left_running(home) == []
    assert list(home.iterdir()) == []


@pytest.mark.parametrize(
    "moment",
    ["Starting", "freezes", "Act 4: the site", "is killed (SIGKILL) in"],
)
def test_ctrl_c_leaves_nothing_behind(home, start, moment):
    """Ctrl-C at any moment, also with stopped processes about, ends all: no file, no traceback."""
    demo = start("--once")
    await_line(demo, moment)
    deadline = time.monotonic() + PATIENCE
    while not any("-server" in command for command in left_running(home)):
        assert time.monotonic() < deadline, "no node seen"

    demo.send_signal(signal.SIGINT)
    output, complaints = demo.communicate(timeout=PATIENCE)

    assert (demo.returncode, complaints) == (128 + signal.SIGINT, "")
    assert output.endswith("Stopped. Nothing is left running.\n")
    assert left_running(home) == []
    assert list(home.iterdir()) == []


def met_early_and_voting(home: Path) -> tuple[int, int]:
    """How many nodes somebody met before they could vote, and how many vote."""
    ports = [
        int(port)
        for command in left_running(home)
        for port in re.findall(r"-server 127\.0\.0\.1:(\d+)", command)
    ]
    assert len(ports) == 6  # five nodes and a broker
    met_early, voting = 0, 0
    for port in ports:
        with closing(redis.Redis(port=port)) as node:
            # A client writes down since when it has known a node that cannot vote yet.
            met_early += node.hexists("redlock:fences", "empty")
            voting += node.hexists("redlock:fences", "epoch")
    return met_early, voting


def test_the_site_is_open_until_ctrl_c(home, start):
    """Without an end: the printed addresses answer, orders go on over a node's death; Ctrl-C.

    When the site opens, no node has been met by anybody before it could vote.
    """
    demo = start()
    address = await_line(demo, "Site").split()[1]
    locks = await_line(demo, "Locks").split()[1].removeprefix(address)
    _, _, user, _, password = await_line(demo, "Log in").split()
    assert met_early_and_voting(home) == (0, 5)
    assert Browser(address).ask("GET", "/") == 200
    assert log_in(address, f"/{locks}", user, password) == [302, 200]
    await_line(demo, "Node 1 was killed")
    counts = [orders(await_line(demo, "double clicks")) for _ in range(2)]
    assert counts[0] < counts[1]

    demo.send_signal(signal.SIGINT)
    output, complaints = demo.communicate(timeout=PATIENCE)

    assert (demo.returncode, complaints) == (0, "")
    assert output.endswith("Stopped. Nothing is left running.\n")
    assert left_running(home) == []
    assert list(home.iterdir()) == []


def log_in(address: str, path: str, user: str, password: str) -> list[int]:
    """The statuses of logging in, and of a page then."""
    browser = Browser(address)
    browser.ask("GET", "/admin/login/")
    fields = {"username": user, "password": password, "next": path}
    return [browser.ask("POST", "/admin/login/", fields), browser.ask("GET", path)]


def orders(line: str) -> int:
    """The orders under the lock, as a line of progress tells them."""
    found = re.search(r"orders: (\d+)", line)
    assert found
    return int(found[1])


def test_ctrl_c_in_a_terminal(home):
    """In a terminal, under `make`, Ctrl-C is how it is meant to end: a last line, and no error."""
    # -o: the environment of the test has what the demo needs, whatever is newer than its stamp.
    terminal = Terminal(home, "make", "-o", "pyproject.toml", "demo", f"VENV={Path(sys.prefix)}")
    try:
        terminal.await_text("Node 1 was killed")
        terminal.type("\x03")
        status = terminal.await_end()
    finally:
        terminal.close()

    assert status == -signal.SIGINT, terminal.seen  # of make, which gets the Ctrl-C as well
    assert terminal.seen.endswith("Stopped. Nothing is left running.\r\n")
    assert "Traceback" not in terminal.seen
    assert left_running(home) == []
    assert list(home.iterdir()) == []


# -- when the site fails --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "moment"), [([], "double clicks"), (["--once"], "Act 4: the site")]
)
def test_a_web_server_that_ends_is_told_of_with_its_log(home, start, arguments, moment):
    """When the web server ends by itself, the demo says so, shows its log, and ends."""
    demo = start(*arguments)
    await_line(demo, moment)
    masters = [pid for pid, command in processes(home).items() if "gunicorn" in command]
    os.kill(min(masters), signal.SIGKILL)  # the first one has started the others
    output, complaints = demo.communicate()
    assert (demo.returncode, complaints) == (1, "")
    assert "the web server has ended by itself" in output
    assert "The log of the web server ends with:" in output
    assert left_running(home) == []
    assert list(home.iterdir()) == []
