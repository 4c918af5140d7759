"""The examples of docs/how-to/other-clients.md run as they stand, in the clients' environments."""

from __future__ import annotations

import json
import os
import re
import subprocess
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from django.test import override_settings

from dev.benchmarks.peers import SINGLE, PeerUnavailable, node, python
from dev.benchmarks.peers.environments import ROOT
from django_redlock import redlock

PAGE = (ROOT / "docs/how-to/other-clients.md").read_text()
PASSWORD = "s3cr3t"


class Example(NamedTuple):
    client: str
    language: str
    text: str


def examples() -> list[Example]:
    """The blocks of the page, each under the heading with its client's name."""
    found = []
    for section in PAGE.split("\n### ")[1:]:
        client = section.partition("\n")[0]
        blocks = re.findall(r"^```(\w+)\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
        found += [Example(client, *block) for block in blocks]
    return found


def run(example: Example, urls: list[str], folder: Path) -> str:
    """What the example prints, when NODES are these."""
    program = folder / "example.js" if example.language == "js" else folder / "example.py"
    declared = "const NODES" if example.language == "js" else "NODES"
    program.write_text(f"{declared} = {json.dumps(urls)}\n{example.text}")
    environment = dict(os.environ)
    try:
        if example.language == "js":
            if (home := node()) is None:
                pytest.skip("there is no node and npm")
            interpreter, environment["NODE_PATH"] = "node", str(home / "node_modules")
        else:
            peer = "redis" if example.client == "redis-py" else example.client
            interpreter = str(python(peer))
    except PeerUnavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    ended = subprocess.run(
        [interpreter, program], env=environment, stdout=subprocess.PIPE, timeout=60, check=True
    )
    return ended.stdout.decode()


@pytest.mark.parametrize("example", examples(), ids=lambda it: f"{it.client}-{len(it.text)}")
def test_an_example_of_the_page(redlock_nodes, tmp_path, example):
    """It says "taken" while we hold the name, and "ours" when we do not; its ACL user suffices."""
    prefix = "" if example.client == "python-redis-lock" else "redlock:"
    nodes = redlock_nodes[:1] if example.client in SINGLE else redlock_nodes[:]
    (line,) = re.findall(r"^ACL SETUSER peers (.*)$", PAGE, re.MULTILINE)
    rules = line.replace(">PASSWORD", f">{PASSWORD}").split()
    if not prefix:
        (more,) = re.findall(r"user of its own also needs `(.*?)`", PAGE)
        rules += more.split()
    for each in nodes:
        with closing(each.client()) as admin:
            admin.execute_command("ACL SETUSER", "peers", *rules)
    urls = [each.url.replace("//", f"//peers:{PASSWORD}@") for each in nodes]
    alias = redlock_nodes.settings(KEY_PREFIX=prefix, NODE_TIMEOUT=5)
    alias["NODES"] = [each.url for each in nodes]
    with override_settings(REDLOCK={"default": alias}):
        with redlock("invoice:42"):
            assert run(example, urls, tmp_path) == "taken\n"
        assert run(example, urls, tmp_path) == "ours\n"
        with redlock("invoice:42", wait=5):
            pass
    for each in nodes:
        with closing(each.client()) as admin:
            refused = admin.execute_command("ACL LOG")
            admin.execute_command("ACL LOG", "RESET")
            admin.execute_command("ACL DELUSER", "peers")
            assert refused == []
