"""A client's process as a run commands it: told what to do, stopped, and killed."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from django_redlock.testing.server import DEAD, process_state, wait_for

from . import history
from .history import History

ROOT = Path(__file__).resolve().parents[1]
ANSWER_SECONDS = 60.0


class ClientError(Exception):
    """A client raised something, or ended; the text says what."""


class Client:
    """A running client; a context manager. ``notes`` is where its stops and its death are noted."""

    def __init__(
        self,
        who: str,
        command: Sequence[str],
        told: dict[str, Any],
        notes: History,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.who = who
        self._notes = notes
        self._process = subprocess.Popen(
            [*command, json.dumps(told | {"who": who})],
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A Ctrl-C is for the museum alone. When that is killed, the kernel ends the group also
            # where it is stopped, because nobody is left who could let it go on.
            process_group=0,
        )

    def __enter__(self) -> Self:
        try:
            self.answer()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what it is told ----------------------------------------------------------------------

    def acquire(self, wait: float = 0.0) -> bool:
        """Have it take the lock; return whether it has it."""
        return bool(self.ask("acquire", wait=wait)["held"])

    def extend(self) -> bool:
        """Have it prolong its hold; return whether it could."""
        return bool(self.ask("extend")["held"])

    def believes(self) -> bool:
        """Return whether it has the lock by what it knows."""
        return bool(self.ask("believe")["held"])

    def read(self) -> int:
        """Have it read what the lock guards."""
        return int(self.ask("read")["value"])

    def write(self) -> bool:
        """Have it write one more than it has read; return whether the store took that."""
        return bool(self.ask("write")["done"])

    def release(self) -> None:
        """Have it give the lock back."""
        self.ask("release")

    def use(self) -> None:
        """Have it read and write."""
        self.read()
        self.write()

    def take_a_turn(self, wait: float) -> bool:
        """Have it acquire, read, write and release; return whether it had the lock."""
        if not self.acquire(wait):
            return False
        self.use()
        self.release()
        return True

    def ask(self, verb: str, **how: Any) -> dict[str, Any]:
        """Tell it something, and return its answer.

        Raises:
            ClientError: the recipe raised an exception.
        """
        self.tell(verb, **how)
        return self.answer()

    def tell(self, verb: str, **how: Any) -> None:
        """Tell it something, and do not wait for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": verb} | how).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self, within: float = ANSWER_SECONDS) -> dict[str, Any]:
        """Return its next answer."""
        pipe = self._process.stdout
        assert pipe is not None
        if not select.select([pipe], [], [], within)[0]:
            raise ClientError(f"{self.who} said nothing for {within:g} s")
        line = pipe.readline()
        if not line:
            raise ClientError(f"{self.who} ended with {self._process.wait()}")
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            raise ClientError(said["error"])
        return said

    # -- what befalls it ----------------------------------------------------------------------

    def stop(self) -> None:
        """Stop the process (SIGSTOP); return when it is."""
        self._process.send_signal(signal.SIGSTOP)
        self.wait_until_stopped()

    def wait_until_stopped(self) -> None:
        """Wait until it stands still: also one that stops itself at a point of its recipe."""
        stopped_or_dead = DEAD | {"T"}
        pid = self._process.pid
        wait_for(lambda: process_state(pid) in stopped_or_dead, ANSWER_SECONDS, "a stop")
        if process_state(pid) in DEAD:
            raise ClientError(f"{self.who} ended instead of stopping")
        self._notes.note(history.STOPPED, self.who)

    def go_on(self) -> None:
        """Let it go on (SIGCONT)."""
        self._notes.note(history.GOES_ON, self.who)
        self._process.send_signal(signal.SIGCONT)

    def hang(self) -> None:
        """Let its work hang: it is told nothing more, while its other threads go on."""
        self._notes.note(history.HANGS, self.who)

    def kill(self) -> None:
        """Kill it (SIGKILL); what it held it holds no more, though servers may not know."""
        self._process.kill()
        self._process.wait()
        self._notes.note(history.KILLED, self.who)

    def abandon(self) -> None:
        """Kill it, whatever it does; a caller that waits for its answer gets a ClientError."""
        self._process.kill()

    def close(self) -> None:
        """End the process: its input ends, and if that does not help, by force."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
