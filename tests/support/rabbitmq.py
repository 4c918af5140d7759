"""A RabbitMQ of the system's package, as a process of its own on free ports of 127.0.0.1."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from django_redlock.testing.server import DEAD, process_state
from tests.support.processes import process
from tests.support.waiting import eventually

# Not /usr/sbin/rabbitmq-server: Debian's wrapper there changes the user, and so the environment.
SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
START = 60.0  # seconds until it takes connections, on a busy machine
ATTEMPTS = 3  # a port that was free may be taken before the server has it


def why_not() -> str:
    """Why no server can be started here; empty: one can."""
    if not SERVER.exists():
        return f"no {SERVER}: apt-get install --no-install-recommends rabbitmq-server"
    if shutil.which("epmd") is None:
        return "no epmd, which comes with Erlang"
    return ""


@contextmanager
def rabbitmq() -> Iterator[str]:
    """A server that nobody else knows; yields the URL of its broker."""
    with ExitStack() as stack:
        for attempt in range(ATTEMPTS):
            try:
                url = stack.enter_context(_server())
                break
            except AssertionError:
                if attempt == ATTEMPTS - 1:
                    raise
        yield url


@contextmanager
def _server() -> Iterator[str]:
    home = Path(tempfile.mkdtemp(prefix="rabbitmq-"))
    port, distribution, names = free_ports(3)
    env = environment(home, port, distribution, names)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        # In the foreground: the one that Erlang would start by itself outlives its server.
        epmd = ["epmd", "-port", str(names), "-address", "127.0.0.1"]
        stack.enter_context(process(epmd, env, home / "epmd.log"))
        eventually(lambda: is_open(names), within=START, every=0.02, what="epmd")
        log = home / "server.log"
        server = stack.enter_context(process([str(SERVER)], env, log))
        ready = eventually(
            lambda: "dead" if process_state(server) in DEAD else speaks_amqp(port),
            within=START,
            every=0.1,
            what="RabbitMQ",
        )
        assert ready is True, log.read_text()[-3000:]
        yield f"amqp://guest:guest@127.0.0.1:{port}//"


def environment(home: Path, port: int, distribution: int, names: int) -> dict[str, str]:
    """What a server needs to share nothing with another one, nor with the machine."""
    for file in ("rabbitmq-env.conf", "enabled_plugins"):
        (home / file).write_text("[].\n" if file == "enabled_plugins" else "")
    own = {
        "HOME": home,  # of the Erlang cookie
        "ERL_EPMD_PORT": names,
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_CRASH_DUMP_SECONDS": 0,
        "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the server: one process id
        "RABBITMQ_NODENAME": f"test-{uuid.uuid4().hex[:12]}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": port,
        "RABBITMQ_DIST_PORT": distribution,
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_BASE": home,
        "RABBITMQ_CONF_ENV_FILE": home / "rabbitmq-env.conf",
        "RABBITMQ_CONFIG_FILE": home / "rabbitmq",
        "RABBITMQ_ADVANCED_CONFIG_FILE": home / "advanced",
        "RABBITMQ_GENERATED_CONFIG_DIR": home / "generated",
        "RABBITMQ_ENABLED_PLUGINS_FILE": home / "enabled_plugins",
        "RABBITMQ_MNESIA_BASE": home / "mnesia",
        "RABBITMQ_LOG_BASE": home / "log",
        "RABBITMQ_PID_FILE": home / "pid",
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RABBITMQ_")}
    return kept | {name: str(value) for name, value in own.items()}


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.socket())) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def is_open(port: int) -> bool:
    """Whether somebody listens on a port."""
    with suppress(OSError), closing(socket.create_connection(("127.0.0.1", port), 1)):
        return True
    return False


def speaks_amqp(port: int) -> bool:
    """Whether a broker answers there: it does so when it has booted."""
    with suppress(OSError), closing(socket.create_connection(("127.0.0.1", port), 1)) as client:
        client.sendall(b"AMQP\x00\x00\x09\x01")
        client.settimeout(2)
        return client.recv(1) == b"\x01"
    return False
