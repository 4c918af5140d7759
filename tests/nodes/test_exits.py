"""Processes that end while they hold locks, wait for one, or have connections."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from django_redlock import redlock
from tests.support.waiting import slowness

PROCESS = """
import asyncio, json, os, sys, threading
from django.conf import settings
settings.configure(REDLOCK={"default": json.loads(os.environ["ALIAS"])})
from django_redlock import redlock

def in_a_block():
    with redlock("a block"):
        sys.exit(0)

def of_tasks():
    async def main():
        # The development mode complains of each step of a loop that a busy machine holds up.
        asyncio.get_running_loop().slow_callback_duration = float("inf")
        async with redlock("of a block"):
            kept.append(await redlock("of a task").aacquire())
    asyncio.run(main())

def while_a_thread_waits():
    began = threading.Event()
    def wait():
        began.set()
        redlock("held", wait=float("inf")).acquire()
    threading.Thread(target=wait, daemon=True).start()
    began.wait()

def with_a_socket_left_open():
    import socket
    kept.append(socket.socket())

kept = [redlock("held").acquire()]
print("held", flush=True)
globals()[sys.argv[1]]() if sys.argv[1] else None
"""
WAYS = ["", "in_a_block", "of_tasks", "while_a_thread_waits"]
PATIENCE = 60.0  # seconds; the ttl of the locks is ten times that


def ended(nodes, way: str) -> tuple[int, str]:
    """The exit status, and what was complained of."""
    alias = nodes.settings(NODE_TIMEOUT=10, MAX_TTL=600, RESTART_GUARD=False, TTL=600)
    command = [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", PROCESS, way]
    done = subprocess.run(
        command,
        env=os.environ | {"ALIAS": json.dumps(alias)},
        capture_output=True,
        text=True,
        timeout=PATIENCE * max(1.0, slowness()),
        check=False,
    )
    assert done.stdout == "held\n"
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_process_that_ends_closes_what_it_has_and_waits_for_nobody(patient_nodes, way):
    """With leases held: no hang, no complaint of Python's development mode, the ttl goes on."""
    assert ended(patient_nodes, way) == (0, "")
    assert redlock("held").state().held


@pytest.mark.slow
def test_what_is_left_open_is_complained_of(patient_nodes):
    """The check can fail."""
    _, complaints = ended(patient_nodes, "with_a_socket_left_open")
    assert "ResourceWarning: unclosed <socket" in complaints
