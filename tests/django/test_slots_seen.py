"""What people are shown of a limited lock, and how they take a slot of it away."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from io import StringIO
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection

from django_redlock import LeaseLost, LockTaken, NodesUnavailable, conf, redlock
from django_redlock.core import slots
from django_redlock.events import logger
from django_redlock.inspection import LockStatus, survey
from django_redlock.inspection.survey import slots_taken
from tests.support.looked_at import A, B, put, queue, status

from .test_admin import PAGE, browser, look
from .test_admin import rows as rows_of

pytestmark = pytest.mark.django_db
NAME = "openai"
LOCK = f"{PAGE}lock/"


def put_slot(memory: Any, slot: int, limit: int, label: str = "web-1", *nodes: int) -> None:
    """Let a client hold a slot of the name, which takes ``limit`` for k."""
    value = f"{A if label == 'web-1' else B}:5:{slots.label_with(label, slots.Slot(slot, limit))}"
    put(memory, slots.entry_of(NAME, slot), value, *(nodes or range(5)))


def first_cells(out: str) -> list[str]:
    """The first column of the table of locks."""
    table = out.rpartition("\nlock ")[2].splitlines()[2:]
    return [line.split("  ")[0] for line in table if " of 5  " in line]


@pytest.fixture(params=["memory", "patient_nodes"])
def nodes(request: pytest.FixtureRequest) -> Any:
    """Five nodes, in memory and real."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def leases(nodes: Any) -> Iterator[list[Any]]:
    """Two of five slots, held."""
    with ExitStack() as stack:
        made = [redlock(NAME, limit=5, renew=False).acquire() for _ in range(2)]
        for each in made:
            stack.callback(each.release)
        yield sorted(made, key=lambda each: each.slot or 0)


def release(*args: Any, **options: Any) -> str:
    """Run ``redlock_release``; what it printed."""
    out = StringIO()
    call_command("redlock_release", *args, yes=True, stdout=out, **options)
    assert slots.MARK not in out.getvalue()
    return out.getvalue()


# -- redlock_status -------------------------------------------------------------------------------


def test_each_slot_is_a_row_with_its_number(leases):
    """As ``lease.slot`` has it, and how many of all are held; a gauge counts each as a lock."""
    code, out = status()
    assert code == 0
    assert slots.MARK not in out
    assert first_cells(out) == [f"openai (slot {each.slot} of 5)" for each in leases]
    assert "openai: 2 of 5 held; slots are numbered from 0." in out
    assert "different limits" not in out
    assert first_cells(status(NAME)[1]) == first_cells(out)  # and no row of a plain lock
    assert 'redlock_names_held{alias="default"} 2' in status("--prometheus")[1]
    with redlock("plain"):
        document = status("--json")[1]
    assert "\\u001f" not in document
    found = json.loads(document)["aliases"]["default"]["locks"]
    assert [(each["name"], each["slot"], each["limit"]) for each in found] == [
        *((NAME, each.slot, 5) for each in leases),
        ("plain", None, None),
    ]
    assert all(cell["holder"] == each["holder"] for each in found for cell in each["cells"])


def test_slots_stand_together_in_the_order_of_their_numbers(memory):
    """Behind the plain lock, before names that begin with it; limits that differ are told."""
    for slot in (10, 2, 0):
        put_slot(memory, slot, 12)
    put_slot(memory, 6, 8, "web-2")  # as while a new version is rolled out
    put(memory, NAME, f"{B}:5:web-2", *range(5))
    put(memory, f"{NAME}!", f"{B}:5:web-2", *range(5))
    out = status()[1]
    assert first_cells(out) == [
        "openai",
        *(f"openai (slot {slot} of {12 if slot != 6 else 8})" for slot in (0, 2, 6, 10)),
        "openai!",
    ]
    assert "openai: 4 held; slots are numbered from 0." in out
    assert "openai: its holders have different limits, 8 and 12." in out


def test_slots_are_not_counted_where_rows_may_be_missing(memory):
    """By a filter, by --limit, or without a majority."""
    for slot in range(3):
        put_slot(memory, slot, 5)
    assert "3 of 5 held" in status()[1]
    assert "of 5 held" not in status("--older-than", "0")[1]
    assert "of 5 held" not in status("--limit", "2")[1]
    memory.down = {0, 1, 2}
    assert "of 5 held" not in status()[1]


def test_a_task_that_holds_a_slot_is_known(memory):
    """Its label is at its end, in front of the limit; so it is not queued besides."""
    put_slot(memory, 1, 3, "host:1(reports.build):id-7")
    queue(memory, "reports.build", NAME, "id-7", *range(5))
    (found,) = json.loads(status("--json")[1])["aliases"]["default"]["locks"]
    assert (found["task"], found["id"], found["slot"]) == ("reports.build", "id-7", 1)


def test_the_states_of_slots(nodes):
    """One that rests, one that was taken away, and one on a minority."""
    lease = redlock(NAME, limit=1, min_hold=30).acquire()
    lease.release()
    (found,) = survey(conf.backend("default")).locks
    assert (found.kind, found.slot, found.limit) == (LockStatus.RESTING, 0, 1)
    other = redlock(NAME, limit=2, renew=False).acquire()
    assert redlock.revoke(NAME, slot=other.slot, reason="hangs").slot == other.slot == 1
    (_, found) = survey(conf.backend("default")).locks
    assert (found.kind, found.slot, found.limit) == (LockStatus.REVOKED, 1, 2)
    assert slots.MARK not in repr(survey(conf.backend("default")).locks[1].holder)
    assert found.holder.endswith(", revoked by " + other.backend.label() + ": hangs")
    with pytest.raises(LeaseLost, match="hangs"):
        other.extend()
    taken = slots_taken(conf.backend("default"), NAME)
    assert [each.slot for each in taken] == [0, 1]
    other.release()


# -- redlock_release ------------------------------------------------------------------------------


def test_a_slot_is_taken_away_from_its_holder_alone(leases):
    """And the other one stays."""
    gone, stays = leases
    text = release(NAME, slot=gone.slot, reason="hangs")
    assert f"openai (slot {gone.slot} of 5): held" in text
    assert f"openai (slot {gone.slot}): taken away on 5 of 5 nodes" in text
    with pytest.raises(LeaseLost, match="hangs"):
        gone.extend()
    stays.extend()
    with pytest.raises(CommandError, match=rf"'openai' \(slot {stays.slot} of 5\) has the fence"):
        release(NAME, slot=stays.slot, fence=1)


def test_a_limited_name_without_a_slot_is_refused_with_its_holders(leases):
    """What an on-call person types first tells what to type next, and takes nothing away."""
    one, two = leases
    held = (
        rf"'openai' has a limit, and these of its slots are held: slot {one.slot} by .*; slot "
        rf"{two.slot} by .*"
    )
    remedy = rf"\. --slot {one.slot} takes one away, --slot all takes away all"
    with pytest.raises(CommandError, match=held + remedy):
        release(NAME)
    with pytest.raises(LookupError, match=held + rf"\. slot={one.slot} takes one away"):
        redlock.revoke(NAME)
    for each in leases:
        each.extend()


def test_all_slots_are_taken_away_on_demand(leases):
    """Those that are held; without any, it says so."""
    text = release(NAME, slot="all")
    assert text.count("taken away on 5 of 5 nodes") == 2
    for each in leases:
        with pytest.raises(LeaseLost):
            each.extend()
        each.release()
    with pytest.raises(CommandError, match="nobody holds a slot of 'openai'"):
        release(NAME, slot="all")
    with pytest.raises(CommandError, match=r"nobody holds 'openai' \(slot 4\)"):
        release(NAME, slot=4)


def test_a_plain_lock_beside_slots_is_taken_away_by_its_name(leases):
    """It is another lock."""
    plain = redlock(NAME, renew=False).acquire()
    release(NAME)
    with pytest.raises(LeaseLost):
        plain.extend()
    for each in leases:
        each.extend()
    plain.release()


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ((NAME, "--slot", "x"), "'x' is no slot: write its number"),
        ((NAME, "--slot", "128"), "slot must be a number from 0 to 127, as lease.slot, not 128"),
        ((NAME, "--slot", "-1"), "slot must be a number from 0 to 127"),
        ((NAME, "other", "--slot", "0"), "--slot is of one name: give one"),
        (("--task", "id-1", "--slot", "0"), "--slot are for locks and go without --task"),
    ],
)
def test_a_slot_that_makes_no_sense(memory, args, why):
    """A slot that is no number, out of range or of several names is refused, with its rule."""
    with pytest.raises(CommandError, match=why):
        release(*args)


def test_who_takes_a_slot_away_without_a_majority_reads_the_name(memory):
    """And not what stands for the slot on the nodes."""
    put_slot(memory, 2, 5)
    memory.down = {0, 1, 2}
    with pytest.raises(NodesUnavailable) as error:
        redlock.revoke(NAME, slot=2)
    assert error.value.name == NAME


@pytest.mark.parametrize("slot", ["0", "all"])
def test_a_slot_of_a_lock_without_a_limit(memory, slot):
    """Who reads "nobody holds it" would take the lock for free."""
    with redlock(NAME):
        with pytest.raises(CommandError, match=r"held by .+ without a limit: leave --slot out"):
            release(NAME, "--slot", slot, "--yes")
        assert redlock(NAME).state().held
    with pytest.raises(CommandError, match="nobody holds"):
        release(NAME, "--slot", slot, "--yes")


# -- the admin page -------------------------------------------------------------------------------


def test_the_admin_lists_slots_and_leads_to_each(nodes):
    """The address of one lock has the slot; nothing has the character."""
    viewer = browser("view_lock")
    with redlock(NAME, limit=5) as lease:
        page = look(viewer)
        assert slots.MARK not in page
        assert "%1F" not in page
        assert f"openai (slot {lease.slot} of 5)" in rows_of(page)
        assert f'href="lock/?alias=default&amp;name=openai&amp;slot={lease.slot}"' in page
        assert "openai: 1 of 5 held; slots are numbered from 0." in page
        one = viewer.get(LOCK, {"name": NAME, "slot": str(lease.slot)}).content.decode()
        assert f"openai (slot {lease.slot} of 5)" in one
        free = viewer.get(LOCK, {"name": NAME}).content.decode()
        assert "nobody holds &#x27;openai&#x27;" in free
        assert look(viewer, q=NAME).count("(slot ") == 1


def test_the_admin_takes_a_slot_away(nodes):
    """From the holder that it shows, and from no other slot."""
    releaser = browser("view_lock", "release_lock")
    lease, other = (redlock(NAME, limit=2, renew=False).acquire() for _ in range(2))
    query = {"name": NAME, "slot": str(lease.slot)}
    form = releaser.get(LOCK, query).context["form"]
    sent = {"seen": form.initial["seen"], "reason": "hangs"}
    wrong = releaser.post(f"{LOCK}?name={NAME}&slot={other.slot}", sent)
    assert "Look again: this has changed" in wrong.content.decode()
    assert releaser.post(f"{LOCK}?name={NAME}&slot={lease.slot}", sent).status_code == 302
    with pytest.raises(LeaseLost, match="hangs"):
        lease.extend()
    other.extend()
    entry = LogEntry.objects.get()
    assert entry.object_repr == f"openai (slot {lease.slot})"
    assert f"openai (slot {lease.slot}): taken away on 5 of 5 nodes" in look(releaser)
    other.release()


@pytest.mark.parametrize("slot", ["x", "128", "-1", "²"])
def test_the_admin_refuses_what_is_no_slot(memory, slot):
    """In a sentence, whatever the address has."""
    response = browser("view_lock").get(LOCK, {"name": NAME, "slot": slot})
    assert "slot must be a number from 0 to 127" in response.content.decode()


# -- the log --------------------------------------------------------------------------------------


def test_the_log_has_the_slot(memory, caplog):
    """Beside the name, and as a field; a full lock is told by its name."""
    with caplog.at_level(logging.DEBUG, logger.name):
        lease = redlock(NAME, limit=1).acquire()
        with pytest.raises(LockTaken, match="'openai': all 1 slots are held") as refused:
            redlock(NAME, limit=1).acquire(wait=0)
        lease.release()
    told: list[Any] = [each for each in caplog.records if hasattr(each, "redlock_event")]
    assert [each.redlock_slot for each in told] == [0, None, 0]
    assert [each.redlock_limit for each in told] == [1, None, 1]
    assert "name='openai' slot=0 of 1 fence=" in told[0].getMessage()
    assert slots.MARK not in caplog.text + repr(refused.value.votes)


@pytest.mark.django_db(transaction=True)
def test_a_transaction_in_a_slot(memory):
    """BEGIN after the grant, COMMIT before the release; inside another one it is refused."""
    with redlock(NAME, limit=2).atomic() as lease:
        assert (lease.name, lease.limit) == (NAME, 2)
        assert connection.in_atomic_block
        with pytest.raises(RuntimeError, match="openai"):
            redlock(NAME, limit=2).atomic().__enter__()
    assert survey(conf.backend("default")).locks == ()
    assert not connection.in_atomic_block
