"""`redlock_run` and `LockedCommand`: real processes, real nodes, commands that will not end."""

from __future__ import annotations

import fcntl
import io
import math
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import partial
from importlib import import_module
from io import FileIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import override_settings

from django_redlock import LockTaken, NodesUnavailable, redlock
from django_redlock.backend import LABEL_BYTES
from django_redlock.management import TAKEN, LockedCommand, child, guardian
from django_redlock.testing import EmbeddedNodes, taken, unavailable
from django_redlock.testing.plugin import mend
from django_redlock.testing.server import process_state
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
RUN = [sys.executable, "-m", "django", "redlock_run"]
TTL = 3.0  # seconds
LATEST = 120.0  # seconds, for what hangs: a busy machine may take a minute to start a process
LONG = 10.0  # for a SIGKILL that comes half a second before the deadline, on a busy machine
SETTINGS = "from tests.settings import *\nREDLOCK = {{'default': {alias!r}}}\n"
# Says who it is on the first line of a file, and whether it was asked to end on others.
STUBBORN = """
import os, signal, sys, time
out = open(sys.argv[1], "a", buffering=1)
signal.signal(signal.SIGTERM, lambda *_: print("asked", file=out))
print(os.getpid(), os.environ["REDLOCK_NAME"], os.environ["REDLOCK_FENCE"], file=out)
while True:
    time.sleep(0.01)
    with open(sys.argv[1] + ".alive", "w") as beat:
        beat.write(repr(time.clock_gettime(time.CLOCK_BOOTTIME)))
"""

# Instead of Python, for the guardian.
STANDS_STILL = f'#!/bin/sh\necho $$ >>{{file}}\nkill -STOP $$\nexec {sys.executable} "$@"\n'
# For the settings: a signal comes while the command is started.
STRUCK = """
import os, signal, subprocess
class Struck(subprocess.Popen):
    def __init__(self, args, **options):
        if args[0] == "sleep":
            os.kill(os.getpid(), signal.SIGTERM)
        super().__init__(args, **options)
subprocess.Popen = Struck
"""
BROKEN_GUARDIAN = f"""
import os, sys
sys.path.insert(0, {str(Path(guardian.__file__).parent)!r})
import guardian
def newest(orders):
    if not (text := os.read(orders, guardian.PAGE)):
        raise EOFError
    return guardian.ORDER.unpack(text[-guardian.ORDER.size :])
guardian.newest = newest
guardian.main(*sys.argv[1:])
"""
BROKEN = {  # each breaks a part of `redlock_run`
    "newest": f"child.GUARDIAN = (sys.executable, '-c', {BROKEN_GUARDIAN!r})",
    "FileIO": """
class Dropping(child.FileIO):
    def write(self, order):
        super().write(order)
        return len(order)
child.FileIO = Dropping
""",
    "end": """
def end(job):
    job._send(9)
    return True
child.Job.end = end
""",
}
# As `timeout` does it.
LEAVE = (
    sys.executable,
    "-c",
    "import os, sys; os.setpgid(0, 0); os.execv(sys.argv[1], sys.argv[1:])",
)
# A command of another user, whom `redlock_run` has no permission to signal: as under `sudo -u`.
MAY_NOT_KILL = ["setpriv", "--bounding-set=-kill", "--inh-caps=-kill"]
SOMEBODY = ["setpriv", "--reuid=65534", "--clear-groups"]
OTHER_USERS = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="only root can start a command of another user, by setpriv",
)

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(autouse=True)
def hangup() -> Iterator[None]:
    """What a test starts hears of SIGHUP, also where ``nohup`` has started the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def start(redlock_embedded: EmbeddedNodes, tmp_path: Path) -> Iterator[Start]:
    """Start `redlock_run` with these arguments, against the nodes of the test."""
    # Mended: a parent that an earlier test has killed left its lock.
    alias = mend(
        redlock_embedded, NODE_TIMEOUT=0.5, TTL=TTL, MAX_TTL=60, RENEW=True, RESTART_GUARD=False
    )
    (tmp_path / "settings_of_run.py").write_text(SETTINGS.format(alias=alias))
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": "settings_of_run"}
    with ExitStack() as stack:

        def start(*arguments: str, by: list[str] = RUN, **options: Any) -> subprocess.Popen[str]:
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            process = subprocess.Popen(
                [*by, *arguments], env=environment, text=True, **(pipes | options)
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        with override_settings(REDLOCK={"default": alias}):  # this process uses the same nodes
            yield start


@pytest.fixture
def said(tmp_path: Path) -> Path:
    """The file to which a command writes."""
    return tmp_path / "said"


@pytest.fixture
def stubborn(start: Start, said: Path) -> Callable[..., tuple[subprocess.Popen[str], int]]:
    """Start `redlock_run` with a command that notes SIGTERM and goes on; that one's number, too."""

    def stubborn(*arguments: str, by: tuple[str, ...] = (), **options: Any) -> Any:
        command = [*by, sys.executable, "-c", STUBBORN, str(said)]
        process = start(*arguments, "--", *command, **options)
        return process, int(lines(said, 1)[0].split()[0])

    return stubborn


def ended(process: subprocess.Popen[str], text: str | None = None) -> tuple[int, str, str]:
    """The exit status of a process that is given this text, its output and its errors."""
    out, err = process.communicate(text, timeout=LATEST)
    return process.returncode, out, err


@contextmanager
def no_majority(nodes: EmbeddedNodes) -> Iterator[None]:
    """Three of five nodes hang."""
    with ExitStack() as stack:
        for number in range(3):
            nodes.pause(number)
            stack.callback(nodes.resume, number)
        yield


def children(pid: int) -> list[int]:
    """What a process has started, the oldest first; of `redlock_run` guardian and command."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return sorted(int(each) for task in tasks for each in task.read_text().split())


def broken_run(what: str) -> list[str]:
    """`redlock_run`, of which a part is broken."""
    manage = "from django.core.management import execute_from_command_line as manage"
    code = f"import sys\nfrom django_redlock.management import child\n{BROKEN[what]}\n{manage}\n"
    return [sys.executable, "-c", f"{code}manage(sys.argv)", "redlock_run"]


def stop_guardian(process: subprocess.Popen[str], *, fill: bool = False) -> int:
    """Let the guardian stand still; ``fill``: for so long that its pipe is full of old orders.

    Returns:
        A descriptor of that pipe.
    """
    keeper = children(process.pid)[0]
    os.kill(keeper, signal.SIGSTOP)
    eventually(lambda: are_stopped([keeper]), within=LATEST)
    orders = Path(f"/proc/{keeper}/cmdline").read_bytes().split(b"\0")[-3].decode()
    pipe = f"/proc/{keeper}/fd/{orders}"
    if fill:
        old = guardian.ORDER.pack(guardian.now(), guardian.now())
        with FileIO(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK), "wb") as full:
            while full.write(old):
                pass
    return os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)


def is_read(pipe: int) -> bool:
    """Whether nothing is left in a pipe."""
    return fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)) == bytes(4)


def says(folder: Path, *texts: str) -> None:
    """Wait until the errors of a process have all of this."""
    file = folder / "err"
    eventually(
        lambda: all(text in file.read_text() for text in texts), within=LATEST, what=str(file)
    )


def delete_key(nodes: EmbeddedNodes, name: str) -> None:
    """Let the lease be lost."""
    for node in nodes:
        with node.client() as client:
            client.delete(f"redlock:lock:{name}")


def idle(code: str) -> list[str]:
    """A command that does this and stays. Ctrl-C ends it at any moment, and not a shell's wait.

    A shell that is about to fork hears it only when that child has ended.
    """
    return [sys.executable, "-c", f"import time; {code}; time.sleep(600)"]


def lines(file: Path, count: int) -> list[str]:
    """The first lines of the command, once there are so many."""
    return eventually(
        lambda: found if len(found := _lines(file)) >= count else [], within=LATEST, what=str(file)
    )


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def last_sign(file: Path) -> float:
    """When the stubborn command has last said that it lives; 0 if it did not come to that."""
    sign = Path(f"{file}.alive")
    return float(sign.read_text() or 0) if sign.exists() else 0.0


def is_gone(pid: int) -> bool:
    """Whether a process runs no more; a zombie does not."""
    return process_state(pid) in {"Z", "X", ""}


def is_pending(pid: int, number: int) -> bool:
    """Whether a signal has come to a process that it has not had yet."""
    status = Path(f"/proc/{pid}/status").read_text()
    (pending,) = (line for line in status.splitlines() if line.startswith("ShdPnd:"))
    return bool(int(pending.split()[1], 16) & 1 << number - 1)


def are_stopped(pids: list[int]) -> bool:
    """Whether all of them are stopped."""
    return {process_state(pid) for pid in pids} == {"T"}


@pytest.fixture
def terminal(start: Start) -> Iterator[tuple[Start, Callable[[bytes], object]]]:
    """What starts a process at a terminal, and what types there."""
    ours, theirs = pty.openpty()

    def session() -> None:
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    at = {"stdin": theirs, "stdout": theirs, "preexec_fn": session, "pass_fds": [theirs]}
    yield partial(start, **at), partial(os.write, ours)
    os.close(ours)
    os.close(theirs)


def someone_waits(nodes: EmbeddedNodes) -> bool:
    """Whether a client stands in the queue of a name."""
    for node in nodes:
        with node.client() as client:
            if any("b" in each["flags"] for each in client.client_list()):
                return True
    return False


def is_free(name: str) -> bool:
    """Whether the name can be had."""
    lease = redlock(name, ttl=1).try_acquire()
    if lease:
        lease.release()
    return lease is not None


# -- the usual way --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "status"),
    [pytest.param("exit 0", 0, marks=pytest.mark.nightly), ("exit 7", 7), ("kill -KILL $$", 137)],
)
def test_the_exit_status_is_that_of_the_command(start, command, status):
    """Also one by a signal; the name is free at the end."""
    assert ended(start("report", "--", "sh", "-c", command)) == (status, "", "")
    assert is_free("report")


@pytest.mark.slow
def test_the_command_has_the_input_the_name_and_the_fence(start):
    """The name and the fence in its environment, the input and the output as they are."""
    script = "cat; echo $REDLOCK_NAME $REDLOCK_FENCE"
    process = start("report", "--", "sh", "-c", script, stdin=subprocess.PIPE)
    _, out, err = ended(process, "text ")
    text, name, fence = out.split()
    assert (text, name, err) == ("text", "report", "")
    with redlock("report") as later:
        assert int(fence) < later.fence


@pytest.mark.slow
def test_others_see_the_program_and_no_argument(start, redlock_embedded):
    """In their refusal and in `redlock_status`."""
    process = start("report", "--", "sh", "-c", ": secret; echo here; exec sleep 600")
    assert process.stdout is not None
    process.stdout.readline()
    with pytest.raises(LockTaken) as refused:
        redlock("report").acquire()
    out = io.StringIO()
    call_command("redlock_status", json=True, stdout=out)
    for text in (str(refused.value), out.getvalue()):
        assert f":{process.pid}(sh)" in text
        assert "secret" not in text


def test_the_name_of_a_program_is_no_task_and_no_text_without_end(monkeypatch):
    """Whatever a file is called: the label of a task ends in `(task):id`."""
    redlock_run = import_module("django_redlock.management.commands.redlock_run")
    monkeypatch.setattr(redlock_run, "process_label", lambda: f"{'ö' * 90}:4711")
    label = redlock_run._label(f"/opt/(task):1{'x' * 300}")
    assert re.fullmatch(r"ö+:4711\(_task__1x+\)", label)
    assert len(label.encode()) <= LABEL_BYTES


@pytest.mark.slow
def test_the_command_has_the_descriptors_that_a_shell_opened(start):
    """As in `redlock_run report -- cat <(echo text)`."""
    ours, theirs = os.pipe()
    os.write(theirs, b"text")
    os.close(theirs)
    process = start("report", "--", "cat", f"/dev/fd/{ours}", pass_fds=[ours])
    os.close(ours)
    assert ended(process) == (0, "text", "")


@pytest.mark.slow
def test_a_signal_that_is_ignored_stays_so(start):
    """As `nohup` wants it for the command."""
    process = start(
        "report",
        *["--", "sh", "-c", "exec grep SigIgn /proc/$$/status"],
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert int(ended(process)[1].split()[1], 16) & 1 << signal.SIGHUP - 1


@pytest.mark.slow
def test_a_name_that_is_taken_and_nodes_that_are_away(start, redlock_embedded):
    """75 and 69, a line that says why, and the command is not run."""
    with redlock("report", ttl=10):
        *refused, err = ended(start("report", "--", "echo", "runs"))
    assert refused == [75, ""]
    assert "'report'" in err
    with redlock("report", ttl=10):  # cron mails whatever is printed
        assert ended(start("report", "-v", "0", "--", "echo", "runs")) == (75, "", "")
    with no_majority(redlock_embedded):
        *refused, err = ended(start("other", "--", "echo", "runs"))
    assert refused == [69, ""]
    assert "2 of 5 nodes could vote" in err
    assert "Traceback" not in err


# What Python has on Windows: of `signal` and `os` less than the modules of `redlock_run` name.
WINDOWS = """
import os, signal, subprocess, sys
for module, names in (signal, "SIGHUP SIGCHLD SIGKILL pthread_sigmask"), (os, "killpg waitid"):
    for name in names.split():
        delattr(module, name)
"""


def test_windows_is_told_in_one_sentence(start):
    """The command says what it needs, before it asks a node."""
    manage = "from django.core.management import execute_from_command_line as manage"
    code = f"{WINDOWS}{manage}\nmanage(sys.argv)"
    process = start("report", "--", "true", by=[sys.executable, "-c", code, "redlock_run"])
    needs = "CommandError: redlock_run needs process groups, which Windows lacks: use WSL there\n"
    assert ended(process) == (1, "", needs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "status"),
    [("no-such-program", 127), pytest.param("/etc", 126, marks=pytest.mark.nightly)],
)
def test_a_program_that_cannot_be_run(start, command, status):
    """As a shell says it; nothing stays taken."""
    found, _, err = ended(start("report", "--", command))
    assert found == status
    assert err.startswith(f"{command}: ")
    assert is_free("report")


@pytest.mark.slow
def test_a_standby_takes_over_when_the_first_is_stopped(start, tmp_path, redlock_embedded):
    """SIGTERM goes to the command; the next in line runs when it has ended."""
    first, second = tmp_path / "first", tmp_path / "second"
    one = start("beat", "--wait", "inf", "--", "sh", "-c", f"echo here >>{first}; exec sleep 600")
    lines(first, 1)
    two = start("beat", "--wait", "inf", "--", "sh", "-c", f"echo here >>{second}")
    eventually(lambda: someone_waits(redlock_embedded), within=LATEST)
    assert _lines(second) == []
    one.send_signal(signal.SIGTERM)
    assert one.wait(LATEST) == 128 + signal.SIGTERM
    lines(second, 1)
    assert two.wait(LATEST) == 0


@pytest.mark.slow
def test_a_standby_that_is_stopped_leaves_the_line(start, redlock_embedded):
    """It ends at once, without a traceback, and the name is free for the next."""
    with redlock("beat", ttl=10):
        standby = start("beat", "--wait", "inf", "--", "echo", "runs")
        eventually(lambda: someone_waits(redlock_embedded), within=LATEST)
        standby.send_signal(signal.SIGTERM)
        assert ended(standby) == (128 + signal.SIGTERM, "", "")
    assert is_free("beat")


def slow_guardian(folder: Path) -> Path:
    """Let the guardian stand still when it is started; return the file that gets its number."""
    file, python = folder / "stands", folder / "python"
    python.write_text(STANDS_STILL.format(file=file))
    python.chmod(0o755)
    with (folder / "settings_of_run.py").open("a") as settings:
        settings.write(f"import sys\nsys.executable = {str(python)!r}\n")
    return file


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)]
)
def test_a_signal_before_the_command_has_begun(start, tmp_path, number):
    """It is not lost, and the command does not begin: here the guardian stands still first."""
    file = slow_guardian(tmp_path)
    process = start("report", "--", "echo", "runs")
    pid = int(lines(file, 1)[0])
    eventually(lambda: process_state(pid) == "T", within=LATEST)
    process.send_signal(number)
    with suppress(FileNotFoundError, ProcessLookupError):  # it has not been waited for
        eventually(lambda: is_pending(pid, number), within=LATEST)
        os.kill(pid, signal.SIGCONT)
    assert ended(process) == (-number if number == signal.SIGINT else 128 + number, "", "")
    assert is_free("report")


@pytest.mark.slow
@pytest.mark.parametrize("into_a_file", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_in_a_terminal_ctrl_c_ends_the_command(terminal, said, into_a_file):
    """The command has the terminal: it can read from it, and Ctrl-C is for it."""
    start, press = terminal
    command = idle(f"open({str(said)!r}, 'w').write(input())")
    output = {"stdout": subprocess.PIPE} if into_a_file else {}
    process = start("report", "--", *command, **output)
    press(b"typed\n")
    assert lines(said, 1) == ["typed"]
    press(b"\x03")
    assert process.wait(LATEST) == -signal.SIGINT
    assert is_free("report")


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["sh", pytest.param("bash", marks=pytest.mark.nightly)])
def test_in_a_terminal_ctrl_c_ends_a_script(terminal, said, shell):
    """As it does if the script runs the command itself: nothing that follows is run."""
    start, press = terminal
    begin = idle(f"open({str(said)!r}, 'w').write('begun')")
    command = shlex.join([*RUN, "report", "--", *begin])
    process = start("-c", f"{command}; echo on >>{said}", by=[shell])
    lines(said, 1)
    press(b"\x03")
    assert process.wait(LATEST) in {-signal.SIGINT, 128 + signal.SIGINT}
    assert lines(said, 1) == ["begun"]
    assert is_free("report")


@pytest.mark.slow
def test_in_a_terminal_a_pager_has_the_keyboard(terminal, said):
    """What the command's output goes to can read from the terminal, as `less` does."""
    start, press = terminal
    command = shlex.join([*RUN, "report", "--", *idle("print('page', flush=True)")])
    pager = f"{{ read page; read key </dev/tty; echo $page $key >>{said}; }}"
    process = start("-c", f"{command} | {pager}", by=["sh"])
    press(b"typed\n")
    assert lines(said, 1) == ["page typed"]
    press(b"\x03")
    process.wait(LATEST)
    eventually(lambda: is_free("report"), within=LATEST)


@pytest.mark.slow
def test_in_a_terminal_a_script_that_goes_on_has_it_back(terminal, said):
    """When the command has ended, what follows it can read from the terminal."""
    start, press = terminal
    script = f"{shlex.join([*RUN, 'report', '--', 'true'])}; read typed; echo $typed >>{said}"
    start("-c", script, by=["sh"])
    press(b"typed\n")
    assert lines(said, 1) == ["typed"]


def test_in_a_terminal_a_guardian_that_is_dead_gets_nothing(terminal):
    """It was killed before it could have the terminal: that is no error of the command."""
    start, _ = terminal
    nobody = 2**22 - 1
    give = f"from django_redlock.management import child; child._give_terminal({nobody})"
    status, _, err = ended(start("-c", give, by=[sys.executable]))
    assert (status, err) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
def test_in_a_terminal_ctrl_z_stops_the_command(terminal, said, late):
    """Also `redlock_run`; the shell continues both, and ends both when the lease is over."""
    start, press = terminal
    shell = start("-i", "-m", by=["sh"])
    command = f"trap 'echo on >>{said}' CONT; echo begun >>{said}; while :; do sleep 0.1; done"
    press(f"{shlex.join([*RUN, 'job', '--', 'sh', '-c', command])}\n".encode())
    lines(said, 1)
    (run,) = children(shell.pid)
    keeper, child = children(run)
    press(b"\x1a")
    eventually(lambda: are_stopped([run, child]), within=LATEST)
    assert not are_stopped([keeper])
    if late:
        with redlock("job", wait=LATEST):  # the lease is over
            press(b"fg\n")
            eventually(lambda: is_gone(run) and is_gone(child), within=LATEST)
        assert lines(said, 1) == ["begun"]
    else:
        press(b"fg\n")
        assert lines(said, 2)[1] == "on"
        press(b"\x03")
        eventually(lambda: is_gone(run) and is_gone(child), within=LATEST)
    press(b"exit 0\n")
    shell.wait(LATEST)
    assert is_free("job")


# -- what must end it -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_parent_takes_the_command_with_it(start, said):
    """And what the command has started, long before the name can be free."""
    script = f"sleep 600 & echo $! >>{said}; exec sleep 600"
    process = start("killed", "--ttl", "60", "--", "sh", "-c", script)
    (grandchild,) = map(int, lines(said, 1))
    process.kill()
    process.wait(LATEST)
    eventually(lambda: is_gone(grandchild), within=30)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["nodes away", "parent stopped", "key deleted"])
def test_a_command_that_ignores_sigterm_ends_before_the_lease(
    stubborn, said, redlock_embedded, how
):
    """It is asked, then killed; its last sign of life is from before the deadline."""
    process, pid = stubborn(how, "--ttl", f"{LONG:g}")
    if how == "parent stopped":
        process.send_signal(signal.SIGSTOP)
    elif how == "key deleted":
        delete_key(redlock_embedded, how)
    with no_majority(redlock_embedded) if how == "nodes away" else nullcontext():
        last = guardian.now() + LONG  # no later deadline is possible: nothing was renewed since
        eventually(lambda: is_gone(pid), within=LATEST)
    assert lines(said, 2)[1] == "asked"
    assert last_sign(said) < last
    process.send_signal(signal.SIGCONT)
    status, _, err = ended(process)
    assert status == 70
    assert "the lease was lost" in err


@pytest.mark.slow
@pytest.mark.parametrize("by", ["a signal", "a loss"])
def test_a_command_that_has_left_the_group(stubborn, tmp_path, said, redlock_embedded, by):
    """`redlock_run` reaches it where it is, and says that nobody else would."""
    with (tmp_path / "err").open("w") as err:
        process, pid = stubborn("job", by=LEAVE, stderr=err)
    says(tmp_path, "has left its process group")
    if by == "a signal":
        process.send_signal(signal.SIGTERM)
        assert lines(said, 2)[1] == "asked"
        os.kill(pid, signal.SIGKILL)
    else:
        delete_key(redlock_embedded, "job")
    assert process.wait(LATEST) == (128 + signal.SIGKILL if by == "a signal" else 70)
    assert is_gone(pid)


@pytest.mark.slow
def test_what_a_command_leaves_behind_ends_with_it(start, said):
    """The name is not free while something of it works on."""
    process = start("report", "--", "sh", "-c", f"sleep 600 & echo $! >>{said}")
    assert process.wait(LATEST) == 0
    assert is_gone(int(lines(said, 1)[0]))


@pytest.mark.slow
@pytest.mark.parametrize("pipe", ["", "full"])
def test_a_guardian_that_stands_still(stubborn, said, redlock_embedded, pipe):
    """`redlock_run` ends the command itself, and waits for no room in the guardian's pipe."""
    process, pid = stubborn("job")
    os.close(stop_guardian(process, fill=bool(pipe)))
    delete_key(redlock_embedded, "job")
    last = guardian.now() + TTL
    eventually(lambda: is_gone(pid), within=LATEST)
    assert last_sign(said) < last
    assert process.wait(LATEST) == 70


@pytest.mark.slow
def test_a_signal_for_a_command_that_is_stopped(start, said):
    """It goes on, and ends by the signal."""
    process = start("job", "--", "sh", "-c", f"echo $$ >>{said}; exec sleep 600")
    pid = int(lines(said, 1)[0])
    os.killpg(os.getpgid(pid), signal.SIGSTOP)
    eventually(lambda: are_stopped([os.getpgid(pid), pid]), within=LATEST)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LATEST) == 128 + signal.SIGTERM


@pytest.mark.slow
def test_a_killed_guardian_ends_the_command(stubborn):
    """Nobody would end it in time any more."""
    process, pid = stubborn("report")
    os.kill(children(process.pid)[0], signal.SIGKILL)
    status, _, err = ended(process)
    assert status == 70
    assert "the process that watches the command was killed" in err
    assert is_gone(pid)


def test_the_guardian_is_told_what_has_changed():
    """Each renewal, and the loss; what it knows it is not told again."""
    lease: Any = SimpleNamespace(grant=SimpleNamespace(deadline=100.0, ttl=30.0), lost=False)
    job: Any = SimpleNamespace(_lease=lease, _grace=10.0, _ordered=None, _lost_at=math.inf)
    job._clock, job._say = lambda: 50.0, Mock()
    for deadline in 100.0, 110.0, 110.0:
        lease.grant.deadline = deadline
        child.Job._order(job)
    lease.lost = True
    child.Job._order(job)
    told = [guardian.ORDER.unpack(each.args[0]) for each in job._say.write.call_args_list]
    assert told == [(90.0, 99.5), (100.0, 109.5), (50.0, 60.0)]


def test_a_guardian_that_fails_ends_its_group():
    """Whatever happens in it, nothing goes on unwatched."""
    failed = subprocess.run([*child.GUARDIAN, "no", "numbers"], process_group=0, check=False)
    assert failed.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["", "newest", "FileIO"])
def test_a_guardian_that_stood_still_for_long(start, said, broken):
    """It acts on the newest order, although its pipe is full of older ones.

    A broken one reads a part of its orders only; with another one, what does not fit is not said.
    """
    command = ["sh", "-c", f"echo here >>{said}; exec sleep 600"]
    process = start("job", "--", *command, by=broken_run(broken) if broken else RUN)
    lines(said, 1)
    keeper, pid = children(process.pid)
    orders = stop_guardian(process, fill=True)
    with pytest.raises(LockTaken):  # the lease is renewed for longer than a ttl
        redlock("job", wait=2 * TTL).acquire()
    os.kill(keeper, signal.SIGCONT)
    if not broken:
        eventually(lambda: is_read(orders) and process_state(keeper) != "R", within=LATEST)
        assert process_state(keeper) == "S"  # it has not acted on them
        assert not is_gone(pid)
        process.send_signal(signal.SIGTERM)
    assert process.wait(LATEST) == (70 if broken else 128 + signal.SIGTERM)
    os.close(orders)


@pytest.mark.slow
def test_no_command_is_started_when_its_time_is_over(start, tmp_path, redlock_embedded):
    """A guardian that is slow to start watches nothing; `redlock_run` does not wait for it."""
    file = slow_guardian(tmp_path)
    process = start("report", "--", "echo", "runs")
    lines(file, 1)
    delete_key(redlock_embedded, "report")
    *status, err = ended(process)
    assert status == [70, ""]
    assert "the lease was lost" in err


@pytest.mark.slow
def test_a_signal_while_the_command_is_started(start, tmp_path):
    """The command, which is not there yet, has it afterwards."""
    with (tmp_path / "settings_of_run.py").open("a") as settings:
        settings.write(STRUCK)
    process = start("report", "--", "sleep", "600")
    assert process.wait(LATEST) == 128 + signal.SIGTERM


# -- what it may not end ---------------------------------------------------------------------------


@pytest.fixture
def of_another_user(start, tmp_path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], int]]]:
    """Start `redlock_run` with a command that it may not signal; return that one's number, too."""
    file, begun = tmp_path / "begun", []

    def of_another_user(before: str = "", after: str = "", by: list[str] = RUN) -> Any:
        work = shlex.join([*SOMEBODY, "sh", "-c", "echo $$; exec sleep 600"])
        with file.open("w") as out, (tmp_path / "err").open("w") as err:
            process = start(
                *("job", "--", "sh", "-c", f"{before}{work}{after.format(file=file)}"),
                by=[*MAY_NOT_KILL, *by],
                stdout=out,
                stderr=err,
            )
        begun.append(int(lines(file, 1)[0]))
        return process, begun[-1]

    yield of_another_user
    for pid in begun:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


LEFT_BEHIND = " & until [ -s {file} ]; do sleep 0.1; done"


@OTHER_USERS
@pytest.mark.slow
def test_what_cannot_be_ended_is_named_and_waited_for(of_another_user, tmp_path, redlock_embedded):
    """The lease is lost; the exit status is not that of a command that was ended."""
    process, pid = of_another_user("exec ")
    delete_key(redlock_embedded, "job")
    says(tmp_path, f"has no permission to end the process {pid}")  # the guardian
    says(tmp_path, f"redlock_run waits for the process {pid}", "the lease is lost")
    assert not is_gone(pid)
    assert process.poll() is None
    os.kill(pid, signal.SIGKILL)
    assert process.wait(LATEST) == 77


@OTHER_USERS
@pytest.mark.slow
@pytest.mark.parametrize("broken", ["", "end"])
def test_the_name_stays_taken_while_something_cannot_be_ended(of_another_user, tmp_path, broken):
    """The command has ended and left it behind; a broken `redlock_run` takes no notice."""
    process, pid = of_another_user(after=LEFT_BEHIND, by=broken_run(broken) if broken else RUN)
    if broken:
        assert process.wait(LATEST) == 0
        assert is_free("job")
        assert not is_gone(pid)
        return
    says(tmp_path, f"redlock_run waits for the process {pid}", "the name stays taken")
    with pytest.raises(LockTaken):  # for longer than a ttl
        redlock("job", wait=2 * TTL).acquire()
    said = (tmp_path / "err").read_text().splitlines()
    assert sorted(said) == sorted(set(said))  # each once, however long it waits
    os.kill(pid, signal.SIGKILL)
    assert process.wait(LATEST) == 77
    assert is_free("job")


@OTHER_USERS
@pytest.mark.slow
def test_a_signal_that_may_not_be_sent_is_told(of_another_user, tmp_path):
    """The command goes on, and its exit status is its own."""
    process, pid = of_another_user("exec ")
    process.send_signal(signal.SIGTERM)
    says(tmp_path, f"no permission to send SIGTERM to the process {pid}")
    os.kill(pid, signal.SIGKILL)
    assert process.wait(LATEST) == 128 + signal.SIGKILL


@OTHER_USERS
@pytest.mark.slow
def test_a_guardian_whose_parent_was_killed_names_what_it_cannot_end(of_another_user, tmp_path):
    """Nobody else can say it."""
    process, pid = of_another_user("exec ")
    process.kill()
    says(tmp_path, f"has no permission to end the process {pid}")


@pytest.mark.parametrize(
    ("foreign", "named"), [((), ""), ((8,), "the process 8:"), ((8, 9), "the processes 8, 9:")]
)
def test_the_guardian_names_those_that_it_may_not_signal(monkeypatch, capfd, foreign, named):
    """One, or each of several; its own, and one that has ended, it does not name."""

    def kill(pid: int, _: int) -> None:
        if pid in foreign:
            raise PermissionError
        if pid == 6:
            raise ProcessLookupError

    with monkeypatch.context() as patch:
        patch.setattr(guardian, "running", lambda _: [6, 7, *foreign])
        patch.setattr(os, "kill", kill)
        guardian.name_refusals()
    said = capfd.readouterr().err
    assert f"has no permission to end {named}" in said if named else not said


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "behind --"),
        ({"command": "echo hi"}, "must be a list"),
        ({"command": ["true"], "ttl": -1}, "ttl"),
        ({"command": ["true"], "wait": -1}, "wait"),
        ({"command": ["true"], "grace": 25, "ttl": 30}, "--grace"),
        ({"command": ["true"], "alias": "nobody"}, "nobody"),
        *(({"command": ["true"], "limit": each}, "limit must be") for each in (0, 129, True)),
        ({"command": ["true"], "limit": 2, "once_per": 60}, "once takes no limit"),
        *(
            ({"command": ["true"], "once_per": each}, "--once-per must be")
            for each in ("day", True, -1, 0, 9_999_999_999, timedelta(0))
        ),
    ],
)
def test_bad_options_are_named(options, says):
    """In a CommandError, without a traceback."""
    with pytest.raises(CommandError, match=says):
        call_command("redlock_run", "report", **options)


@pytest.mark.parametrize(("options", "grace"), [({}, 10), ({"grace": 19}, 19)])
def test_the_grace_is_what_was_given_or_a_third_of_the_ttl(memory, monkeypatch, options, grace):
    """The seconds between SIGTERM and SIGKILL."""
    runs = Mock(return_value=0)
    monkeypatch.setattr(child, "run", runs)
    call_command("redlock_run", "report", ttl=30, command=["true"], **options)
    assert runs.call_args.kwargs["grace"] == grace


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("report --ttl 3 true --now", "behind --: redlock_run NAME -- COMMAND"),
        ("", "usage: manage.py redlock_run NAME [options] -- COMMAND"),
    ],
)
def test_a_newcomer_is_told_how_it_is_used(start, arguments, says):
    """Without a traceback, also where an option stands before the command."""
    status, _, err = ended(start(*arguments.split()))
    assert status == 2
    assert says in err
    assert "Traceback" not in err


def test_a_thread_cannot_run_it():
    """Python delivers signals to the main thread only, and the command is to have them."""
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(call_command, "redlock_run", "report", command=["true"])
    with pytest.raises(CommandError, match="main thread"):
        run.result()


ONCE = ("--ttl", str(LONG), "--once-per", "20h", "--")


@pytest.mark.slow
def test_a_command_runs_once_per_duration(start):
    """One that has succeeded is not started again; one that failed leaves no record."""
    for status in (3, 0):
        process = start("report", *ONCE, "sh", "-c", f"echo ran; exit {status}")
        assert ended(process)[:2] == (status, "ran\n")
    for more, said in ((), True), (("--verbosity", "0"), False):
        status, out, _ = ended(start("report", *more, *ONCE, "echo", "ran"))
        assert out.startswith("done at 2") is said
        assert "ran" not in out
        assert status == 0


# A signal that comes just before a read is handled behind it, so the program never reads for long.
TIDY = """
import select, signal, sys
for number in (signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, lambda *_: sys.exit(0))
try:
    print("began", flush=True)
    while not select.select([0], [], [], 0.05)[0]:
        pass
except KeyboardInterrupt:
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_work_that_was_asked_to_end_is_not_recorded(start, number):
    """A command that then ends with 0 may be half done: one line says so, and the next run works.

    The exit status is that of a process which the signal has ended, so that whoever starts it, as
    a pod, does not take it for done either.
    """
    process = start("report", *ONCE, sys.executable, "-c", TIDY, stdin=subprocess.PIPE)
    assert process.stdout.readline() == "began\n"
    process.send_signal(number)
    assert process.wait(LATEST) == 128 + number
    (said,) = process.stderr.read().splitlines()
    assert said.startswith(f"'report': {number.name} came while the command ran")
    assert ended(start("report", *ONCE, "echo", "ran")) == (0, "ran\n", "")
    assert ended(start("report", *ONCE, "echo", "ran"))[1][:7] == "done at"


@pytest.mark.slow
def test_in_a_terminal_ctrl_c_leaves_no_record(terminal):
    """It reaches the command's group alone, and `redlock_run` knows of it."""
    start, press = terminal
    process = start("report", *ONCE, sys.executable, "-c", TIDY, stdout=subprocess.PIPE)
    assert process.stdout.readline() == "began\n"
    press(b"\x03")
    assert process.wait(LATEST) == 128 + signal.SIGINT
    assert is_free("report")


@pytest.mark.slow
def test_a_signal_that_is_ignored_leaves_the_record(start):
    """Under `nohup` the command goes on to its end when the terminal hangs up."""
    process = start(
        "report",
        *(*ONCE, sys.executable, "-c", TIDY),
        stdin=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert process.stdout.readline() == "began\n"
    os.killpg(children(process.pid)[0], signal.SIGHUP)
    assert ended(process, "done\n")[0] == 0
    assert ended(start("report", *ONCE, "echo", "ran"))[1][:7] == "done at"


@pytest.mark.slow
def test_so_many_commands_run_at_a_time(start):
    """The next one finds all slots held, and no command reads the character between them."""
    script = "echo $REDLOCK_NAME $REDLOCK_SLOT; read line; echo $line"
    options = ("--ttl", str(LONG), "--limit", "2", "--")
    both = [start("report", *options, "sh", "-c", script, stdin=subprocess.PIPE) for _ in range(2)]
    first = [each.stdout.readline().split() for each in both]
    assert sorted(first) == [["report", "0"], ["report", "1"]]
    status, _, err = ended(start("report", *options, "true"))
    assert status == TAKEN
    assert "'report': all 2 slots are held" in err
    for each in both:
        assert ended(each, "end\n")[1] == "end\n"
    third = start("report", *options, "sh", "-c", "echo $REDLOCK_SLOT")
    assert ended(third)[1] in {"0\n", "1\n"}


# -- LockedCommand --------------------------------------------------------------------------------


REFUSALS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "taken": lambda: taken("other"),
    "unavailable": unavailable,
}


class Import(LockedCommand):
    """A command of a project."""

    lock_name = "import:{source}"
    requires_system_checks = ()

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("source")
        parser.add_argument("--inner")

    def handle(self, *_: Any, **options: Any) -> str:
        if options["inner"]:
            with REFUSALS[options["inner"]]():
                redlock("other", wait=0).acquire()
        return f"{self.lease.name} {self.lease.remaining() > 0}"


def imported(**options: Any) -> str:
    """What the command prints."""
    out = io.StringIO()
    call_command(Import(), "feed", stdout=out, **options)
    return out.getvalue()


def test_a_locked_command_runs_under_its_lock(redlock_nodes):
    """The name is filled in from its options, and free afterwards."""
    assert imported() == "import:feed True\n"
    assert is_free("import:feed")


def test_a_field_that_is_no_option_of_the_command_is_named(monkeypatch):
    """With the option that is like it, and all others."""
    monkeypatch.setattr(Import, "lock_name", "import:{sourec}")
    with pytest.raises(
        ValueError, match=r"\{sourec\} has no value \(did you mean 'source'\?\); .*inner"
    ):
        imported()


def test_a_locked_command_that_runs_elsewhere_ends_with_one_line(redlock_nodes):
    """No error: to cron it is none."""
    with redlock("import:feed"):
        (line,) = imported().splitlines()
        assert imported(verbosity=0) == ""  # cron mails whatever is printed
    assert "'import:feed'" in line
    assert line.endswith("nothing is done here")


@pytest.mark.parametrize(
    ("inner", "error"), [("taken", LockTaken), ("unavailable", NodesUnavailable)]
)
def test_another_lock_of_the_command_is_not_taken_for_its_own(redlock_nodes, inner, error):
    """An error of the body stays one."""
    with pytest.raises(error):
        imported(inner=inner)
