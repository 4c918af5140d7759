"""What the tests must know of the server that they run on (REDLOCK_TEST_SERVER)."""

from __future__ import annotations

import re
import subprocess
from contextlib import closing

from django_redlock.testing import EmbeddedNode


def redis_version(node: EmbeddedNode) -> tuple[int, ...]:
    """The Redis whose commands the node has; Valkey tells the one it descends from."""
    with closing(node.client()) as client:
        told = client.info("server")["redis_version"]
    return tuple(map(int, told.split(".")))


def software(node: EmbeddedNode) -> str:
    """Name and version by the program's own word, without a connection: `valkey 9.1.2`."""
    with closing(node.client()) as client:
        program = client.info("server")["executable"]
    told = subprocess.check_output([program, "--version"], text=True)
    said = re.match(r"(\w+) server v=(\S+) ", told)
    assert said, told
    return f"{said[1].lower()} {said[2]}"
