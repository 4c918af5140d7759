"""A limit of Django's own tasks, under load."""

from __future__ import annotations

from contextlib import ExitStack

from tests.support.waiting import eventually
from tests.tasks.site import LONG
from tests.tasks.test_workers import patient_site, rows, site

__all__ = ["patient_site", "site"]


def test_a_limit_is_used_and_others_do_not_wait(patient_site):
    """Forty runs of 3 s, two at a time, by four workers, beside others that are short.

    They take 75 s at most, where 60 s are ideal, and ten rows each; 19 of 20 of the others begin
    within a second.
    """
    site = patient_site
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(site.worker())
        site.run("-m", "tests.tasks.asking", "steady", "40", "1")
        others = site.start("-m", "tests.tasks.asking", "naive", "120", "1000000000", "7", "0.5")
        assert others.communicate(timeout=2 * LONG)
        eventually(lambda: not site.unfinished(), within=2 * LONG, what="all tasks")
    events = site.events()
    runs = [each.at for each in events if each.key == "k0" and each.event != "asked"]
    asked = {each.key: each.at for each in events if each.event == "asked" and each.key != "k0"}
    begun = {each.key: each.at for each in events if each.event == "begun"}
    late = sorted(begun[key] - at for key, at in asked.items())
    took, each_rows = runs[-1] - runs[0], (rows(site) - 120) / 40
    print(f"\n{took:.1f} s, {each_rows:.1f} rows each, others {late[114]:.2f} s")
    assert len(runs) == 80
    assert took <= 1.25 * 60
    assert each_rows <= 10
    assert late[114] <= 1
