"""`redlock_run` and `LockedCommand`: real processes, real nodes, commands that will not end."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import override_settings

from django_redlock import LockTaken, redlock
from django_redlock.management import LockedCommand, child, guardian
from django_redlock.testing import EmbeddedNodes
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

# How work leaves the process group of the command: `timeout` does the first, a shell's job the
# second. The two others wait for what they have started, whatever they are asked.
LEAVING = {
    "its own group": "os.setpgid(0, 0); os.execv(sys.argv[1], sys.argv[1:])",
    "a group below": "subprocess.run(sys.argv[1:], process_group=0)",
    "a session below": "subprocess.run(sys.argv[1:], start_new_session=True)",
}
OFTEN = [  # all but one of them at night
    pytest.param(how, marks=() if how == "a session below" else pytest.mark.nightly)
    for how in LEAVING
]
LEAVE = "import os, signal, subprocess, sys; signal.signal(signal.SIGTERM, lambda *_: None); "

Start = Callable[..., subprocess.Popen[str]]


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


def stubborn(file: Path) -> list[str]:
    """A command that notes SIGTERM and does not end."""
    return [sys.executable, "-c", STUBBORN, str(file)]


def leaving(how: str, *command: str) -> list[str]:
    """The command, out of the guardian's process group."""
    return [sys.executable, "-c", LEAVE + LEAVING[how], *command]


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
def terminal() -> Iterator[tuple[int, dict[str, Any]]]:
    """The end of a terminal at which somebody types, and what starts a process at the other."""
    ours, theirs = pty.openpty()

    def session() -> None:
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    yield (
        ours,
        {"stdin": theirs, "stdout": theirs, "preexec_fn": session, "pass_fds": [theirs]},
    )
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
    process = start("report", "--", "sh", "-c", command)
    assert process.communicate(timeout=LATEST) == ("", "")
    assert process.returncode == status
    assert is_free("report")


@pytest.mark.slow
def test_the_command_has_the_input_the_name_and_the_fence(start):
    """The name and the fence in its environment, the input and the output as they are."""
    script = "cat; echo $REDLOCK_NAME $REDLOCK_FENCE"
    process = start("report", "--", "sh", "-c", script, stdin=subprocess.PIPE)
    out, err = process.communicate("text ", timeout=LATEST)
    text, name, fence = out.split()
    assert (text, name, err) == ("text", "report", "")
    with redlock("report") as later:
        assert int(fence) < later.fence


@pytest.mark.slow
def test_the_command_has_the_descriptors_that_a_shell_opened(start):
    """As in `redlock_run report -- cat <(echo text)`."""
    ours, theirs = os.pipe()
    os.write(theirs, b"text")
    os.close(theirs)
    process = start("report", "--", "cat", f"/dev/fd/{ours}", pass_fds=[ours])
    os.close(ours)
    assert process.communicate(timeout=LATEST) == ("text", "")


@pytest.mark.slow
def test_a_signal_that_is_ignored_stays_so(start):
    """As `nohup` wants it for the command."""
    process = start(
        "report",
        *["--", "sh", "-c", "exec grep SigIgn /proc/$$/status"],
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    out, _ = process.communicate(timeout=LATEST)
    assert int(out.split()[1], 16) & 1 << signal.SIGHUP - 1


@pytest.mark.slow
def test_a_name_that_is_taken_and_nodes_that_are_away(start, redlock_embedded):
    """75 and 69, a line that says why, and the command is not run."""
    with redlock("report", ttl=10):
        process = start("report", "--", "echo", "runs")
        out, err = process.communicate(timeout=LATEST)
    assert (process.returncode, out) == (75, "")
    assert "'report'" in err
    with redlock("report", ttl=10):
        process = start("report", "-v", "0", "--", "echo", "runs")
        assert process.communicate(timeout=LATEST) == ("", "")  # cron mails whatever is printed
    assert process.returncode == 75
    with ExitStack() as stack:
        for number in range(3):
            redlock_embedded.pause(number)
            stack.callback(redlock_embedded.resume, number)
        process = start("other", "--", "echo", "runs")
        out, err = process.communicate(timeout=LATEST)
    assert (process.returncode, out) == (69, "")
    assert "2 of 5 nodes could vote" in err
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "status"),
    [("no-such-program", 127), pytest.param("/etc", 126, marks=pytest.mark.nightly)],
)
def test_a_program_that_cannot_be_run(start, command, status):
    """As a shell says it; nothing stays taken."""
    process = start("report", "--", command)
    _, err = process.communicate(timeout=LATEST)
    assert process.returncode == status
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
        out, err = standby.communicate(timeout=LATEST)
    assert (standby.returncode, out, err) == (128 + signal.SIGTERM, "", "")
    assert is_free("beat")


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)]
)
def test_a_signal_before_the_command_has_begun(start, tmp_path, number):
    """It is not lost, and the command does not begin: here the guardian stands still first."""
    file, python = tmp_path / "stands", tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho $$ >>{file}\nkill -STOP $$\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with (tmp_path / "settings_of_run.py").open("a") as settings:
        settings.write(f"import sys\nsys.executable = {str(python)!r}\n")
    process = start("report", "--", "echo", "runs")
    pid = int(lines(file, 1)[0])
    eventually(lambda: process_state(pid) == "T", within=LATEST)
    process.send_signal(number)
    with suppress(FileNotFoundError, ProcessLookupError):  # it has not been waited for
        eventually(lambda: is_pending(pid, number), within=LATEST)
        os.kill(pid, signal.SIGCONT)
    assert process.communicate(timeout=LATEST) == ("", "")
    assert process.returncode == (-number if number == signal.SIGINT else 128 + number)
    assert is_free("report")


@pytest.mark.slow
@pytest.mark.parametrize("into_a_file", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_in_a_terminal_ctrl_c_ends_the_command(start, terminal, tmp_path, into_a_file):
    """The command has the terminal: it can read from it, and Ctrl-C is for it."""
    ours, options = terminal
    file = tmp_path / "said"
    command = idle(f"open({str(file)!r}, 'w').write(input())")
    if into_a_file:
        options["stdout"] = subprocess.PIPE
    process = start("report", "--", *command, **options)
    os.write(ours, b"typed\n")
    assert lines(file, 1) == ["typed"]
    os.write(ours, b"\x03")
    assert process.wait(LATEST) == -signal.SIGINT
    assert is_free("report")


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["sh", pytest.param("bash", marks=pytest.mark.nightly)])
def test_in_a_terminal_ctrl_c_ends_a_script(start, terminal, tmp_path, shell):
    """As it does if the script runs the command itself: nothing that follows is run."""
    ours, options = terminal
    file = tmp_path / "said"
    begin = idle(f"open({str(file)!r}, 'w').write('begun')")
    command = shlex.join([*RUN, "report", "--", *begin])
    process = start(
        *("-c", f"{command}; echo on >>{file}"),
        by=[shell],
        **options,
    )
    lines(file, 1)
    os.write(ours, b"\x03")
    assert process.wait(LATEST) in {-signal.SIGINT, 128 + signal.SIGINT}
    assert lines(file, 1) == ["begun"]
    assert is_free("report")


@pytest.mark.slow
def test_in_a_terminal_a_pager_has_the_keyboard(start, terminal, tmp_path):
    """What the command's output goes to can read from the terminal, as `less` does."""
    ours, options = terminal
    file = tmp_path / "said"
    command = shlex.join([*RUN, "report", "--", *idle("print('page', flush=True)")])
    pager = f"{{ read page; read key </dev/tty; echo $page $key >>{file}; }}"
    process = start(
        *("-c", f"{command} | {pager}"),
        by=["sh"],
        **options,
    )
    os.write(ours, b"typed\n")
    assert lines(file, 1) == ["page typed"]
    os.write(ours, b"\x03")
    process.wait(LATEST)
    eventually(lambda: is_free("report"), within=LATEST)


def test_in_a_terminal_a_guardian_that_is_dead_gets_nothing(start, terminal):
    """It was killed before it could have the terminal: that is no error of the command."""
    _, options = terminal
    nobody = 2**22 - 1
    give = f"from django_redlock.management import child; child._give_terminal({nobody})"
    process = start("-c", give, by=[sys.executable], **options)
    assert process.communicate(timeout=LATEST) == (None, "")
    assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
def test_in_a_terminal_ctrl_z_stops_the_command(start, terminal, tmp_path, late):
    """Also `redlock_run`; the shell continues both, and ends both when the lease is over."""
    ours, options = terminal
    file = tmp_path / "said"
    shell = start(
        *("-i", "-m"),
        by=["sh"],
        **options,
    )
    command = f"trap 'echo on >>{file}' CONT; echo begun >>{file}; while :; do sleep 0.1; done"
    os.write(ours, f"{shlex.join([*RUN, 'job', '--', 'sh', '-c', command])}\n".encode())
    lines(file, 1)
    run, keeper, child = guardian.started_by(shell.pid)[:3]
    os.write(ours, b"\x1a")
    eventually(lambda: are_stopped([run, keeper]), within=LATEST)
    if late:
        with redlock("job", wait=LATEST):  # the lease is over
            os.write(ours, b"fg\n")
            eventually(lambda: is_gone(run) and is_gone(child), within=LATEST)
        assert lines(file, 1) == ["begun"]
    else:
        os.write(ours, b"fg\n")
        assert lines(file, 2)[1] == "on"
        os.write(ours, b"\x03")
        eventually(lambda: is_gone(run) and is_gone(child), within=LATEST)
    os.write(ours, b"exit 0\n")
    shell.wait(LATEST)
    assert is_free("job")


# -- what must end it -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_parent_takes_the_command_with_it(start, tmp_path):
    """And what the command has started, long before the name can be free."""
    file = tmp_path / "said"
    script = f"sleep 600 & echo $! >>{file}; exec sleep 600"
    process = start("killed", "--ttl", "60", "--", "sh", "-c", script)
    (grandchild,) = map(int, lines(file, 1))
    process.kill()
    process.wait(LATEST)
    eventually(lambda: is_gone(grandchild), within=30)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["nodes away", "parent stopped", "key deleted"])
def test_a_command_that_ignores_sigterm_ends_before_the_lease(
    start, tmp_path, redlock_embedded, how
):
    """It is asked, then killed; its last sign of life is from before the deadline."""
    file = tmp_path / "said"
    process = start(how, "--ttl", f"{LONG:g}", "--", *stubborn(file))
    pid = int(lines(file, 1)[0].split()[0])
    with ExitStack() as stack:
        if how == "nodes away":
            for number in range(3):
                redlock_embedded.pause(number)
                stack.callback(redlock_embedded.resume, number)
        elif how == "parent stopped":
            process.send_signal(signal.SIGSTOP)
            stack.callback(process.send_signal, signal.SIGCONT)
        else:
            for node in redlock_embedded:
                with node.client() as client:
                    client.delete(f"redlock:lock:{how}")
        last = guardian.now() + LONG  # no later deadline is possible: nothing was renewed since
        eventually(lambda: is_gone(pid), within=LATEST)
    assert lines(file, 2)[1] == "asked"
    assert last_sign(file) < last
    _, err = process.communicate(timeout=LATEST)
    assert process.returncode == 70
    assert "the lease was lost" in err


@pytest.mark.slow
@pytest.mark.parametrize("how", OFTEN)
@pytest.mark.parametrize("fault", ["parent killed", "key deleted"])
def test_what_has_left_the_group_ends_before_the_lease(
    start, tmp_path, redlock_embedded, how, fault
):
    """The guardian finds it where it is."""
    file = tmp_path / "said"
    process = start("job", "--", *leaving(how, *stubborn(file)))
    pid = int(lines(file, 1)[0].split()[0])
    try:
        if fault == "parent killed":
            process.kill()
        else:
            for node in redlock_embedded:
                with node.client() as client:
                    client.delete("redlock:lock:job")
        last = guardian.now() + TTL
        eventually(lambda: is_gone(pid), within=LATEST)
        if fault == "key deleted":
            assert lines(file, 2)[1] == "asked"
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert last_sign(file) < last


@pytest.mark.slow
@pytest.mark.parametrize("how", OFTEN)
def test_a_signal_goes_to_what_has_left_the_group(start, tmp_path, how):
    """It can end as it wants to, while the command waits for it."""
    file = tmp_path / "said"
    script = (
        f"trap 'echo asked >>{file}; exit 3' TERM; echo $$ >>{file}; while :; do sleep 0.1; done"
    )
    process = start("job", "--", *leaving(how, "/bin/sh", "-c", script))
    pid = int(lines(file, 1)[0])
    try:
        process.send_signal(signal.SIGTERM)
        assert lines(file, 2)[1] == "asked"
        process.wait(LATEST)
        assert is_gone(pid)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert is_free("job")


@pytest.mark.slow
@pytest.mark.parametrize("way", [pytest.param("", marks=pytest.mark.nightly), "setsid "])
def test_what_a_command_leaves_behind_ends_with_it(start, tmp_path, way):
    """The name is not free while something of it works on, a daemon too."""
    file = tmp_path / "said"
    process = start("report", "--", "sh", "-c", f"{way}sleep 600 & echo $! >>{file}")
    assert process.wait(LATEST) == 0
    assert is_gone(int(lines(file, 1)[0]))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["its group", *OFTEN])
def test_a_guardian_that_stands_still(start, tmp_path, redlock_embedded, how):
    """Then `redlock_run` itself ends the command before the lease is over."""
    file = tmp_path / "said"
    command = stubborn(file)
    process = start("job", "--", *(leaving(how, *command) if how in LEAVING else command))
    pid = int(lines(file, 1)[0].split()[0])
    os.kill(guardian.started_by(process.pid)[0], signal.SIGSTOP)
    for node in redlock_embedded:
        with node.client() as client:
            client.delete("redlock:lock:job")
    last = guardian.now() + TTL
    try:
        eventually(lambda: is_gone(pid), within=LATEST)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert last_sign(file) < last
    assert process.wait(LATEST) == 70


@pytest.mark.slow
def test_a_signal_for_a_command_that_is_stopped(start, tmp_path):
    """It goes on, and ends by the signal."""
    file = tmp_path / "said"
    process = start("job", "--", "sh", "-c", f"echo $$ >>{file}; exec sleep 600")
    pid = int(lines(file, 1)[0])
    os.killpg(os.getpgid(pid), signal.SIGSTOP)
    eventually(lambda: are_stopped([os.getpgid(pid), pid]), within=LATEST)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LATEST) == 128 + signal.SIGTERM


@pytest.mark.slow
def test_a_killed_guardian_ends_the_command(start, tmp_path):
    """Nobody would end it in time any more."""
    file = tmp_path / "said"
    process = start("report", "--", *stubborn(file))
    pid = int(lines(file, 1)[0].split()[0])
    os.kill(os.getpgid(pid), signal.SIGKILL)
    assert process.wait(LATEST) == 70
    assert is_gone(pid)


def answer_of(program: list[str], term: float, *command: str) -> list[Any]:
    """What a guardian tells of a command that it may run until then."""
    orders, say = os.pipe()
    hear, result = os.pipe()
    process = subprocess.Popen(
        [*program, str(orders), str(result), *command],
        pass_fds=(orders, result),
        process_group=0,
    )
    os.close(orders)
    os.close(result)
    with process, os.fdopen(say, "w", buffering=1) as told, os.fdopen(hear) as answer:
        print([term, term + 60], file=told)
        return list(json.load(answer))


def test_no_command_is_started_when_its_time_is_over():
    """A guardian that was slow to start does not even look for the program."""
    told = answer_of(list(child.GUARDIAN), guardian.now(), "no-such-program")
    assert told == [guardian.LATE]


def test_a_signal_while_the_command_is_started():
    """Its group has it, and the command, which is not there yet, has it afterwards."""
    strike = (
        "import os, runpy, subprocess, sys\n"
        "class Struck(subprocess.Popen):\n"
        "    def __init__(self, *args, **options):\n"
        "        os.killpg(0, 15)\n"
        "        super().__init__(*args, **options)\n"
        "subprocess.Popen = Struck\n"
        "del sys.argv[0]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    program = [sys.executable, "-c", strike, guardian.__file__]
    assert answer_of(program, guardian.now() + 60, "sleep", "15") == [-signal.SIGTERM]


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
    ],
)
def test_bad_options_are_named(options, says):
    """In a CommandError, without a traceback."""
    with pytest.raises(CommandError, match=says):
        call_command("redlock_run", "report", **options)


def test_a_command_without_the_mark_before_it(start):
    """The message says what to write, also where an option stands before the command."""
    process = start("report", "--ttl", "3", "true", "--now")
    assert "behind --: redlock_run NAME -- COMMAND" in process.communicate(timeout=LATEST)[1]
    assert process.returncode == 2


def test_a_thread_cannot_run_it():
    """Python delivers signals to the main thread only, and the command is to have them."""
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(call_command, "redlock_run", "report", command=["true"])
    with pytest.raises(CommandError, match="main thread"):
        run.result()


# -- LockedCommand --------------------------------------------------------------------------------


class Import(LockedCommand):
    """A command of a project."""

    lock_name = "import:{source}"
    requires_system_checks = ()

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("source")
        parser.add_argument("--inner")

    def handle(self, *_: Any, **options: Any) -> str:
        if options["inner"]:
            redlock(options["inner"], wait=0).acquire()
        return f"{self.lease.name} {self.lease.remaining() > 0}"


def test_a_locked_command_runs_under_its_lock(redlock_nodes):
    """The name is filled in from its options, and free afterwards."""
    out = io.StringIO()
    call_command(Import(), "feed", stdout=out)
    assert out.getvalue() == "import:feed True\n"
    assert is_free("import:feed")


def test_a_locked_command_that_runs_elsewhere_ends_with_one_line(redlock_nodes):
    """No error: to cron it is none."""
    out = io.StringIO()
    with redlock("import:feed"):
        call_command(Import(), "feed", stdout=out)
    (line,) = out.getvalue().splitlines()
    assert "'import:feed'" in line
    assert line.endswith("nothing is done here")
    out = io.StringIO()  # cron mails whatever is printed
    with redlock("import:feed"):
        call_command(Import(), "feed", stdout=out, verbosity=0)
    assert not out.getvalue()


def test_another_lock_of_the_command_is_not_taken_for_its_own(redlock_nodes):
    """An error of the body stays one."""
    with redlock("other"), pytest.raises(LockTaken):
        call_command(Import(), "feed", inner="other")
