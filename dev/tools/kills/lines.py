"""Which tests run which lines of the package, and how long they take: a plugin of pytest."""

from __future__ import annotations

import _thread
import json
import os
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import coverage
import pytest

WHERE = "KILLS_LINES"  # an environment variable, for the workers of pytest-xdist see it
PACKAGE = "KILLS_PACKAGE"


_start = _thread.start_new_thread


def _started(function: Callable[..., object], args: tuple[Any, ...], *more: Any) -> int:
    """Record what the package's own threads run as well, which ``threading`` does not start."""

    def traced(*args: Any, **kwargs: Any) -> None:
        sys.settrace(threading.gettrace())
        function(*args, **kwargs)

    return _start(traced, args, *more)


class Lines:
    """What the tests of one worker run."""

    def __init__(self) -> None:
        self.coverage = coverage.Coverage(
            data_file=os.environ[WHERE],
            data_suffix=True,
            source=[os.environ[PACKAGE]],
            config_file=False,
            messages=False,
        )
        # A worker that came too late for a test has none.
        self.coverage.set_option("run:disable_warnings", ["no-data-collected"])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Iterator[Any]:
        """Record while tests run, and not while they are collected."""
        self.coverage.start()
        try:
            with patch.object(_thread, "start_new_thread", _started):
                return (yield)
        finally:
            self.coverage.stop()
            self.coverage.save()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        """Record for this test."""
        self.coverage.switch_context(item.nodeid)
        return (yield)


class Seconds:
    """What the tests of all workers take, with their fixtures, if they pass."""

    def __init__(self) -> None:
        self.taken: dict[str, float] = {}
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the seconds of a part of a test."""
        self.taken[report.nodeid] = self.taken.get(report.nodeid, 0) + report.duration
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write them."""
        passed = {name: round(self.taken[name], 3) for name in sorted({*self.taken} - self.failed)}
        Path(os.environ[WHERE]).with_suffix(".seconds").write_text(json.dumps(passed), "utf-8")


class Record:
    """What was recorded; the tests are run for that, unless the file is there."""

    def __init__(self, file: Path, package: Path, marks: str, workers: int) -> None:
        seconds = file.with_suffix(".seconds")
        if not seconds.exists() or not file.exists():
            print("Recording which tests run which lines takes some minutes ...", flush=True)
            for part in file.parent.glob(f"{file.name}*"):  # of a run that was interrupted
                part.unlink()
            command = [sys.executable, "-m", "pytest", "-p", __name__, "-q", "-m", marks]
            command += ["-n", str(2 * workers), "--dist", "worksteal"]  # tests wait, too
            variables = {WHERE: str(file), PACKAGE: str(package), "COVERAGE_CORE": "ctrace"}
            ended = subprocess.run(command, env=os.environ | variables, check=False)
            if ended.returncode not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
                sys.exit(ended.returncode)
            coverage.Coverage(data_file=file, config_file=False).combine([str(file.parent)])
        self.seconds: dict[str, float] = json.loads(seconds.read_text("utf-8"))
        self._data = coverage.CoverageData(str(file))
        self._data.read()
        self._files: dict[Path, dict[int, list[str]]] = {}

    def running(self, file: Path, lines: Iterable[int]) -> set[str]:
        """Return the tests that run one of these lines, and pass."""
        if file not in self._files:
            self._files[file] = self._data.contexts_by_lineno(str(file))
        found = self._files[file]
        return {test for line in lines for test in found.get(line, ())} & {*self.seconds}

    def in_order(self, tests: Iterable[str]) -> list[str]:
        """Return the shortest test of each module, then the second of each: shortest first."""
        modules: dict[str, list[tuple[float, str]]] = defaultdict(list)
        for test in tests:
            modules[test.partition("::")[0]].append((self.seconds[test], test))
        ranked = [(n, *each) for found in modules.values() for n, each in enumerate(sorted(found))]
        return [test for _, _, test in sorted(ranked)]


def pytest_configure(config: pytest.Config) -> None:
    """Record lines in a worker, and seconds in the process that hears of all."""
    what = Lines() if hasattr(config, "workerinput") else Seconds()
    config.pluginmanager.register(what, "kills-recorder")
