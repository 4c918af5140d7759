"""A process that does not get the processor calls no node silent."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from django_redlock.nodes import background as listening_module
from django_redlock.nodes.background import ListeningTime

# -- threads that do not run --------------------------------------------------------------------


class Clock:
    """The time, which passes only while somebody sleeps; ``late`` seconds more each time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.late = 100.0, 0.0
        fake = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(listening_module, "time", fake)

    def listen(self, listening: ListeningTime) -> None:
        """Listen in vain for one part, and wake up late from it."""
        start, part = self.now, listening.part(5.0)
        self.now += part + self.late
        listening.waited_for(part, start)
        assert listening.late == pytest.approx(self.late)


@pytest.mark.parametrize(("late", "silent"), [(0.0, 0.8), (0.05, 0.4), (0.1, 0.0), (3.0, 0.0)])
def test_time_in_which_a_thread_did_not_run_is_no_silence(late, silent, monkeypatch):
    """Who wakes up late from a tenth of a second has listened for so much less."""
    clock = Clock(monkeypatch)
    listening, sign = ListeningTime(0.8, clock.now), clock.now
    clock.late = late
    for _ in range(8):
        clock.listen(listening)
    assert listening.silence(sign) == pytest.approx(silent)
    assert listening.waited == pytest.approx(0.8)


def test_a_sign_in_the_middle_of_a_part_ends_the_silence_before(monkeypatch):
    """What was listened to before the sign does not count, though it is of the same part."""
    clock = Clock(monkeypatch)
    listening, start = ListeningTime(0.8, clock.now), clock.now
    clock.listen(listening)
    assert listening.silence(start + 0.09) == pytest.approx(0.01)
