"""Processes of other people's programs, which do not outlive the tests that started them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from django_redlock.testing.server import SHELL


@contextmanager
def process(
    command: Sequence[str],
    env: Mapping[str, str],
    log: Path,
    *,
    user: str | None = None,
    inherits: Collection[int] = (),
) -> Iterator[int]:
    """A process by its id; it is killed at the end, and when this process is.

    It inherits the open files with these numbers. With ``user`` it runs as this user of the system,
    who must be able to write the log's folder.
    """
    log.touch()
    if user is not None:
        os.chown(log, *account(user))
    shell = subprocess.Popen(
        ["/bin/sh", "-c", SHELL, "sh", str(log), *command],
        env=env,
        cwd=log.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=inherits,
        **as_user(user),
    )
    assert shell.stdin is not None
    assert shell.stdout is not None
    try:
        with shell.stdout as said:
            yield int(said.readline())
    finally:
        with suppress(BrokenPipeError):
            shell.stdin.write(b"\n")
            shell.stdin.close()
        shell.wait()


def account(user: str) -> tuple[int, int]:
    """The numbers of a user of the system and of its group."""
    import pwd

    entry = pwd.getpwnam(user)
    return entry.pw_uid, entry.pw_gid


def as_user(user: str | None) -> dict[str, Any]:
    """What ``subprocess`` needs to start a process as this user; None: as the one who asks."""
    if user is None:
        return {}
    uid, gid = account(user)
    return {"user": uid, "group": gid, "extra_groups": []}
