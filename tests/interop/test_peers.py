"""The environments of the other clients: made once, anew after a change, refused with a reason."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.peers import PeerUnavailable, environments
from benchmarks.peers.environments import ROOT, STAMP

MAKE = """\
import sys, time
from pathlib import Path
from benchmarks.peers import environments

def install():
    home.mkdir()
    with (home.parent / "installs").open("a") as file:
        file.write("x")
    time.sleep(0.2)  # the others arrive
    (home / "proof").touch()

home = Path(sys.argv[1])
environments._make(home, "pins", home / "proof", install)
assert (home / "proof").is_file()
"""


def test_many_processes_make_an_environment_once(tmp_path):
    """Processes that want one at the same time wait for the first, which makes it."""
    words = [sys.executable, "-c", MAKE, str(tmp_path / "home")]
    started = [subprocess.Popen(words, cwd=ROOT) for _ in range(4)]
    assert [process.wait(60) for process in started] == [0] * 4
    assert (tmp_path / "installs").read_text() == "x"


def test_another_requirement_makes_it_anew(tmp_path):
    """A stamp with another text, none, or a missing file: made from nothing; else left alone."""
    home = tmp_path / "home"
    made = []

    def install():
        home.mkdir()
        (home / "proof").touch()
        made.append(1)

    def make(wanted):
        environments._make(home, wanted, home / "proof", install)
        return len(made)

    assert [make("a"), make("a"), make("b"), make("b")] == [1, 1, 2, 2]
    (home / STAMP).unlink()
    assert [make("b"), make("b")] == [3, 3]
    (home / "proof").unlink()
    assert [make("b"), make("b")] == [4, 4]


def test_what_could_not_be_fetched_is_fetched_once_more(tmp_path):
    """From nothing: a part of the first try would be in the way of the second."""
    home = tmp_path / "home"
    tries = []

    def install():
        home.mkdir()
        tries.append(1)
        if len(tries) == 1:
            raise PeerUnavailable("the network")

    environments._make(home, "a", home / "proof", install)
    assert (len(tries), (home / STAMP).read_text()) == (2, "a")


def test_what_cannot_be_installed_says_why(tmp_path, monkeypatch):
    """The reason is pip's; a second question in the process is answered at once, the same."""
    monkeypatch.setenv("REDLOCK_PEERS_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(environments, "_refused", {})
    monkeypatch.setitem(environments.PYTHON_PEERS, "redis", ("redlock-no-such-package==1",))
    with pytest.raises(PeerUnavailable, match="redlock-no-such-package") as first:
        environments.python("redis")
    monkeypatch.setattr(environments, "_run", pytest.fail)
    with pytest.raises(PeerUnavailable) as second:
        environments.python("redis")
    assert str(second.value) == str(first.value)


def test_without_node_there_is_none(tmp_path, monkeypatch):
    """A machine without Node.js has no folder for it, and says so."""
    monkeypatch.setenv("REDLOCK_PEERS_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environments.node() is None
    assert list(tmp_path.iterdir()) == []
