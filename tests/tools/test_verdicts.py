"""The lint of the tests refuses what a load or an earlier test could decide, and nothing else."""

from __future__ import annotations

import pytest

from tests.support.verdicts import EXCEPTIONS, ROOT, in_source, refused

REFUSED = {
    "a bound": "took = time.monotonic() - began\n    assert took < 5",
    "a bound on the other side": "assert 5 >= time.monotonic() - began",
    "a bound in a chain": "assert 1 < time.perf_counter() - began < 5",
    "a bound with others": "assert seen and time.monotonic() - began <= 5",
    "descriptors": "files = os.listdir('/proc" + "/self/fd')",
    "threads": "assert len(threading.enumerate()) == 1",
    "a tracer": "sys.settrace(trace)",
    "objects": "leases = [each for each in gc.get_objects()]",
    "a sleep": "time.sleep(1)",
    "a clock": "monkeypatch.setattr(waiting, 'LOOK_EVERY', (5, 6))",
    "a clock by its path": "patch('django_redlock.nodes.node.OPEN_TIMEOUT', 60.0)",
}
ALLOWED = {
    "a least time": "took = time.monotonic() - began\n    assert took >= 5",
    "a deadline of one's own": "while time.monotonic() < end:\n        look()",
    "a number that is no time": "assert len(votes) < 5",
    "a clock that stands still": "monkeypatch.setattr(waiting, 'LOOK_EVERY', (3600.0, 3600.0))",
    "a clock that is over at once": "monkeypatch.setattr(waiting, 'LOOK_EVERY', (0.1, 0.1))",
    "a constant that is no time": "monkeypatch.setattr(SURVEYS, 'PAGE', 10)",
}


def found(body: str, *, name: str = "test_it", marks: str = "", module: str = "") -> list[str]:
    """What the lint says of a function with this body."""
    source = f"{module}\n{marks}\ndef {name}():\n    {body}\n"
    return [each.what for each in in_source("tests/folder/test_some.py", source)]


@pytest.mark.parametrize("what", REFUSED)
def test_what_load_or_others_could_decide_is_refused(what):
    """In a test and in a helper, unless the test, or each user of the helper, is marked."""
    body = REFUSED[what]
    assert len(found(body)) == len(found(body, name="helper")) == 1
    for mark in ("nightly", "alone"):
        assert not found(body, marks=f"@pytest.mark.{mark}")
        assert not found(body, module=f"pytestmark = [pytest.mark.slow, pytest.mark.{mark}]")
        user = f"@pytest.mark.{mark}\ndef test_one():\n    helper()\n"
        assert not found(body, name="helper", module=user)
        assert found(body, name="helper", module=user + "def test_two():\n    helper()\n")


@pytest.mark.parametrize("what", REFUSED)
def test_the_mark_of_a_parameter_frees_no_test(what):
    """Its other parameters are played beside others."""
    mark = "@pytest.mark.parametrize('x', [1, pytest.param(2, marks=pytest.mark.nightly)])"
    assert found(REFUSED[what], marks=mark)


@pytest.mark.parametrize("what", ALLOWED)
def test_what_decides_by_itself_is_allowed(what):
    """Nothing is said of it."""
    assert not found(ALLOWED[what])


def test_each_exception_is_there_and_needed():
    """None outlives what it excuses."""
    for where in EXCEPTIONS:
        file, _, function = where.partition("::")
        of_file = list(in_source(file, (ROOT / file).read_text(encoding="utf-8")))
        assert [each for each in of_file if not function or each.function == function], where
    assert refused() == []
