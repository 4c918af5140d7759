"""Taking a lock away: by redlock.revoke, and by manage.py redlock_release, on real nodes."""

from __future__ import annotations

import asyncio
import hashlib
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import override_settings

from django_redlock import LeaseLost, LockTaken, NodesUnavailable, conf, redlock
from django_redlock.core.protocol import Command
from django_redlock.inspection import survey
from django_redlock.inspection.revoke import Revoked
from django_redlock.management import UNKNOWN
from django_redlock.management.commands import redlock_release
from django_redlock.nodes import scripts
from django_redlock.signals import lease_lost, lock_revoked
from tests.support.looked_at import A, finish, put
from tests.support.replays import note_broken
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("patient_nodes")
NAME = "report:42"
NOBODY = [f"unix:///nowhere/{number}.sock" for number in range(5)]


def held(**options: Any) -> Any:
    """A lease of the name."""
    return redlock(NAME, **{"renew": False, **options}).acquire()


def keys(nodes: Any, command: str = "get", *arguments: Any, **options: Any) -> list[Any]:
    """What each of the nodes replies to a command for the key of the name."""
    found = []
    for node in nodes:
        with node.client(decode_responses=True) as client:
            found.append(getattr(client, command)(f"redlock:lock:{NAME}", *arguments, **options))
    return found


# -- from Python ----------------------------------------------------------------------------------


def test_the_holder_is_told_by_whom_and_why_and_the_name_stays_taken(patient_nodes):
    """Until its time is over; nobody else gets it, so there is no second believer."""
    lease = held()
    found = redlock.revoke(NAME, reason="hangs since noon")
    assert (found.done, found.on, found.of, bool(found)) == (True, 5, 5, True)
    assert found.free_in is not None
    assert lease.remaining() <= found.free_in <= 61
    assert redlock(NAME).state().kind == "revoked"
    with pytest.raises(LockTaken, match=r"revoked by .*: hangs since noon") as taken:
        redlock(NAME).acquire(wait=0)
    assert taken.value.retry_after is not None
    assert lease.remaining() > 0  # it has not asked since
    with pytest.raises(LeaseLost, match=r"it was revoked .*: hangs since noon") as lost:
        lease.extend()
    assert (lost.value.code, lease.lost, lease.remaining()) == ("revoked", True, 0.0)
    with pytest.raises(LeaseLost, match="hangs since noon"):
        lease.ensure()
    lease.release()
    assert keys(patient_nodes) == [None] * 5


def test_a_renewal_ends_the_lease(often):
    """The watchdog is told, the signals say why, and on_lost is called."""
    told = threading.Event()
    with heard() as codes:
        lease = held(renew=True, on_lost=lambda _: told.set())
        redlock.revoke(NAME)
        assert told.wait(30)
        eventually(lambda: len(codes) == 2)
    assert (codes, lease.lost) == (["revoked"] * 2, True)


@contextmanager
def heard() -> Iterator[list[str]]:
    """What receivers of both signals get, lease_lost and lock_revoked."""
    codes: list[str] = []

    def note(sender: object, error: LeaseLost, **_: Any) -> None:
        codes.append(error.code)

    for signal in (lease_lost, lock_revoked):
        signal.connect(note)
    try:
        yield codes
    finally:
        for signal in (lease_lost, lock_revoked):
            signal.disconnect(note)


def test_who_loses_a_lease_otherwise_is_not_told_that_it_was_revoked(patient_nodes):
    """Somebody deleted its keys."""
    with heard() as codes:
        lease = held()
        keys(patient_nodes, "delete")
        with pytest.raises(LeaseLost):
            lease.extend()
    assert len(codes) == 1
    assert codes != ["revoked"]


def test_a_release_frees_the_name_at_once_and_wakes_the_next_waiter():
    """Also where the holder did not know."""
    got = threading.Event()

    def wait() -> None:
        with redlock(NAME, wait=50):
            got.set()

    lease = held()
    waiter = threading.Thread(target=wait)
    redlock.revoke(NAME)
    waiter.start()
    assert not got.wait(0.2)
    lease.release()
    assert got.wait(20)  # its lease would have lasted for a minute
    waiter.join()
    assert lease.lost


@pytest.mark.parametrize("mistaken", [False, True])
def test_a_release_of_a_lock_with_min_hold_keeps_only_that_time(
    patient_nodes, monkeypatch, mistaken
):
    """The holder lets go, so the name rests for its min_hold, no longer; and the holder is told."""
    if mistaken:  # the nodes see no mark in the key
        note_broken("a rest does not know who was revoked")
        rested = scripts.TEXT[Command.REST].replace("elseif value then", "elseif false then")
        monkeypatch.setitem(scripts.TEXT, Command.REST, rested)
        digest = hashlib.sha1(rested.encode(), usedforsecurity=False).hexdigest()
        monkeypatch.setitem(scripts.DIGEST, Command.REST, digest)
    with heard() as codes:
        lease = held(min_hold=30)
        assert redlock.revoke(NAME, reason="hangs since noon")
        lease.release()
    lasts = keys(patient_nodes, "pttl")
    if mistaken:
        assert "revoked" not in codes
        assert min(lasts) > 30_000  # it lasts as the lease did
        return
    assert codes == ["revoked"] * 2
    with pytest.raises(LeaseLost, match=r"it was revoked .*: hangs since noon"):
        lease.ensure()
    assert [str(value)[:6] for value in keys(patient_nodes)] == ["rest::"] * 5
    assert all(0 < each <= 30_000 for each in lasts)
    assert redlock(NAME).state().kind == "resting"


def test_a_lease_that_is_extended_has_no_key_put_back(patient_nodes):
    """Neither where it was revoked nor where its names are free."""
    lease = held()
    keys([patient_nodes[4]], "delete")
    assert redlock.revoke(NAME).on == 4
    with pytest.raises(LeaseLost):
        lease.extend()
    assert [bool(value) for value in keys(patient_nodes)] == [True] * 4 + [False]
    assert all(value is None or value.startswith("revoked:") for value in keys(patient_nodes))


def test_one_of_several_names_ends_the_lease():
    """It is one lease."""
    lease = redlock(["a", "b"], renew=False).acquire()
    assert redlock.revoke("b")
    with pytest.raises(LeaseLost) as lost:
        lease.extend()
    assert lost.value.code == "revoked"
    lease.release()
    redlock(["a", "b"]).acquire(wait=0).release()


def test_a_lease_that_was_given_away_cannot_be_adopted_any_more():
    """The handle is the lease."""
    handle = held().handle()
    assert redlock.revoke(NAME)
    with pytest.raises((LeaseLost, LockTaken)):
        redlock.adopt(handle)


def test_now_frees_the_name_at_once(patient_nodes):
    """And the old holder believes in its lease: that is what is said of it."""
    lease = held()
    found = redlock.revoke(NAME, now=True)
    assert (found.done, found.free_in) == (True, 0.0)
    later = redlock(NAME, renew=False).acquire(wait=0)
    assert later.fence > lease.fence
    lease.release()
    assert None not in keys(patient_nodes)  # the next holder's
    later.release()


def test_it_takes_from_the_holder_that_was_seen_and_from_no_other():
    """The fence selects, and a name that nobody holds has nobody to take it from."""
    with pytest.raises(LookupError, match="nobody holds 'report:42'"):
        redlock.revoke(NAME)
    lease = held()
    with pytest.raises(LookupError, match=f"has the fence {lease.fence}, not 7"):
        redlock.revoke(NAME, fence=7)
    with pytest.raises(
        ValueError, match=f"fence must be an int, as lease.fence, not '{lease.fence}'"
    ):
        redlock.revoke(NAME, fence=str(lease.fence))  # type: ignore[arg-type]
    lease.ensure()
    assert redlock.revoke(NAME, fence=lease.fence)
    assert redlock.revoke(NAME)  # once more does no harm
    lease.release()


def test_a_long_reason_arrives_whole():
    """Behind a long label, too."""
    lease = redlock.using(label="h" * 200)(NAME, renew=False).acquire()
    redlock.revoke(NAME, reason="r" * 200)
    with pytest.raises(LeaseLost, match=r"h{200}, revoked by .*: r{200}"):
        lease.extend()
    lease.release()


@pytest.mark.parametrize("value", ["revoked:ab:x", "revoked::", f"revoked:{'A' * 16}:x"])
def test_what_only_looks_like_a_mark_is_another_clients(patient_nodes, value):
    """No reply of a node is senseless for it: it hides nothing, and silences no node."""
    keys(patient_nodes, "set", value, px=60_000)
    assert redlock(NAME).state().kind == "held"
    with pytest.raises(LockTaken):
        redlock(NAME).acquire(wait=0)
    assert redlock.revoke(NAME, now=True)


def test_another_client_cannot_be_told(patient_nodes):
    """Its key is deleted only by now."""
    keys(patient_nodes, "set", "another client's", px=60_000)
    with pytest.raises(LookupError, match="another client holds 'report:42'"):
        redlock.revoke(NAME)
    assert redlock.revoke(NAME, now=True)
    assert keys(patient_nodes) == [None] * 5


@pytest.mark.parametrize("reason", ["x" * 201, "two\nlines", 5])
def test_a_reason_that_cannot_be_shown_is_refused(reason):
    """Before anything is asked."""
    with pytest.raises(ValueError, match="reason must be"):
        redlock.revoke(NAME, reason=reason)


def test_a_task_takes_it_away_as_well():
    """The same steps."""

    async def take() -> Revoked:
        lease = await redlock(NAME, renew=False).aacquire()
        found = await redlock.arevoke(NAME, reason="from a task")
        with pytest.raises(LeaseLost, match="from a task"):
            await lease.aextend()
        await lease.arelease()
        return found

    assert asyncio.run(take()).done


@pytest.mark.slow
def test_a_minority_is_not_yet_enough(patient_nodes):
    """Two nodes of five have the mark; the holder that hears one of them stops all the same."""
    lease = held()
    keys(list(patient_nodes)[2:], "delete")
    with pytest.raises(LookupError, match="nobody holds 'report:42' for certain"):
        redlock.revoke(NAME)
    lease.release()


def test_several_names_are_refused():
    """One is enough: it ends the lease of all."""
    lease = held()
    with pytest.raises(ValueError, match="revoke takes one name, not 2"):
        redlock.revoke([NAME, "other"])  # type: ignore[arg-type]
    lease.extend()


def test_a_block_that_raises_its_loss_says_who_took_the_lock_away():
    """At its end, as at a renewal."""

    def block() -> None:
        with redlock(NAME, on_lost="raise") as lease:
            redlock.revoke(NAME, reason="hangs")
            with suppress(LeaseLost):
                lease.extend()

    with pytest.raises(LeaseLost, match=r"revoked by .*: hangs") as caught:
        block()
    assert caught.value.code == "revoked"


def test_a_user_with_a_number_and_no_name(monkeypatch):
    """As a container may have; the lock is taken away nevertheless."""

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 54321")

    monkeypatch.setattr("getpass.getuser", nameless)
    lease = held()
    assert "taken away on 5 of 5 nodes" in released("--yes")
    with pytest.raises(LeaseLost, match=r"revoked by uid [0-9]+@"):
        lease.extend()


# -- from the command line ------------------------------------------------------------------------


def released(*words: str, names: tuple[str, ...] = (NAME,)) -> str:
    """What the command prints."""
    out = StringIO()
    call_command("redlock_release", *names, *words, stdout=out)
    return out.getvalue()


def test_the_command_shows_the_holder_and_takes_the_lock_away():
    """With who did it."""
    lease = held()
    shown = released("--dry-run")
    assert shown.startswith("report:42: held, by ")
    assert f"on 5 of 5 nodes, fence {lease.fence}, for " in shown
    lease.extend()
    said = released("--yes", "--reason", "hangs")
    assert "report:42: taken away on 5 of 5 nodes, free in at most " in said
    with pytest.raises(LeaseLost, match=r"revoked by .+@.+: hangs"):
        lease.extend()
    lease.release()


def answered(monkeypatch: pytest.MonkeyPatch, answer: Callable[[str], str]) -> None:
    """From now on there is a terminal, at which somebody answers so."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", answer)


def test_the_command_asks_and_does_nothing_without_an_answer(monkeypatch):
    """A script must say --yes."""
    lease = held()
    with pytest.raises(CommandError, match="there is no terminal to ask: add --yes"):
        released()
    answers = iter(["no", "yes", "now"])

    def answer(question: str) -> str:
        assert question.startswith("Take it away? Type '")
        return next(answers)

    answered(monkeypatch, answer)
    for words in ((), ("--now",)):
        with pytest.raises(CommandError, match="nothing was done"):
            released(*words)
    lease.extend()
    assert "free now" in released("--now")
    lease.release()


@pytest.mark.parametrize("key", [EOFError, KeyboardInterrupt])
def test_ctrl_c_and_ctrl_d_are_a_no(monkeypatch, key):
    """Somebody who does not go on reads that nothing was done, and no traceback."""

    def pressed(_: str) -> str:
        raise key

    lease = held()
    answered(monkeypatch, pressed)
    with pytest.raises(CommandError, match="nothing was done"):
        released()
    lease.extend()
    lease.release()


def test_a_holder_that_lets_go_while_somebody_is_asked(monkeypatch):
    """Nobody is told to run it again, which would take the name from the next holder."""
    lease, later = held(), []

    def slowly(_: str) -> str:
        lease.release()
        later.append(held())
        return "yes"

    answered(monkeypatch, slowly)
    with pytest.raises(CommandError, match="that was found does not have it any more") as error:
        released()
    assert error.value.returncode == 1
    later[0].extend()
    later[0].release()


def test_of_several_names_those_that_are_held_are_taken_away(monkeypatch):
    """That one holder has let go meanwhile keeps no other."""
    lease, other = held(), redlock("other").acquire()

    def slowly(_: str) -> str:
        lease.release()
        return "yes"

    answered(monkeypatch, slowly)
    said = released(names=(NAME, "other"))
    assert "other: taken away on 5 of 5 nodes" in said
    assert "the holder of 'report:42' that was found does not have it any more" in said
    with pytest.raises(LeaseLost):
        other.extend()
    other.release()


def test_the_command_says_what_is_wrong(patient_nodes):
    """Nobody holds it, another fence, no majority."""
    with pytest.raises(CommandError, match="nobody holds 'report:42'"):
        released("--yes")
    lease = held()
    with pytest.raises(CommandError, match="not 7"):
        released("--yes", "--fence", "7")
    with pytest.raises(CommandError, match="REDLOCK"):
        released("--yes", "--alias", "nowhere")
    lease.release()


@pytest.mark.slow
def test_the_command_has_a_status_of_its_own_without_a_majority(patient_nodes):
    """So that a script tries again."""
    lease = held()
    for place in (0, 1, 2):
        patient_nodes[place].kill()
    assert refused(NAME)[0] == UNKNOWN
    eventually(lambda: lease.release() is None)


# -- what was not heard is not "no" ---------------------------------------------------------------


def refused(*words: str) -> tuple[int, str]:
    """The exit status of the command, and why it has done nothing."""
    with pytest.raises(CommandError) as error:
        released(*words, "--yes", names=())
    return error.value.returncode, str(error.value)


@pytest.mark.parametrize("words", [["a:1"], ["a:1", "b"], ["--task", "a:1"]], ids=" ".join)
def test_without_a_node_nothing_is_known(words):
    """Neither of a lock nor of a task; the names are in words."""
    with override_settings(REDLOCK={"default": {"NODES": NOBODY}}):
        code, said = refused(*words)
    asked = "'a:1', 'b'" if "b" in words else "'a:1'"
    assert code == UNKNOWN
    assert said.startswith(f"{asked}: 0 of 5 nodes could vote, 3 are needed; 5 of 5 nodes: ")


def test_how_many_nodes_know_of_no_task(memory):
    """A majority that replied would know of it."""
    memory.down = {0, 1}
    code, said = refused("--task", "x-7")
    assert (code, said) == (
        1,
        "no task with the id 'x-7' is queued, runs or has a completion record, say 3 of 5 nodes",
    )


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"nodes": 2}, "say 2 of 5 nodes"),
        ({"truncated": True}, "more names are kept than were looked at"),
    ],
    ids=["silent", "not read to the end"],
)
def test_what_was_not_read_to_its_end_says_nothing(memory, monkeypatch, found, said):
    """Nor does a minority of the nodes."""
    whole = survey(conf.backend("default"))
    nodes = [replace(each, heard=i < found.get("nodes", 5)) for i, each in enumerate(whole.nodes)]
    found = replace(whole, nodes=tuple(nodes), truncated=found.get("truncated", False))
    monkeypatch.setattr(redlock_release, "survey", lambda *_, **__: found)
    code, text = refused("--task", "x-7")
    assert code == UNKNOWN
    assert said in text


def test_a_lock_that_silent_nodes_decide_on_is_not_free(memory):
    """Two nodes have it and two are silent: the holder may have it on four of five."""
    put(memory, "x", f"{A}:5:a", 0, 1)
    memory.down = {2, 3}
    unclear = "'x': 2 of 5 nodes have it, and those that do not vote decide whether it is held"
    code, said = refused("x")
    assert code == UNKNOWN
    assert said.startswith(unclear)
    with pytest.raises(NodesUnavailable, match=unclear) as error:
        redlock.revoke("x")
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)  # noqa: S301
    memory.down = set()
    code, said = refused("x")
    assert code == 1
    assert said.startswith("nobody holds 'x' for certain: its state is partial")


def test_a_task_is_not_cleared_where_a_node_was_not_heard(memory):
    """One record is enough to keep a copy from running, so it is said that one may be left."""
    finish(memory, "reports.sync", "id-7", *range(5))
    clear = ("--task", "id-7")
    memory.down = {4}
    said = released(*clear, "--yes", names=())
    assert "cleared, 4 of 5 nodes have replied\nThe others may still know of it" in said
    memory.down = set()
    assert released(*clear, "--yes", names=()).endswith("cleared, 5 of 5 nodes have replied\n")
    assert refused(*clear)[0] == 1


def test_a_lock_that_rests_after_its_run_is_no_task(memory):
    """Nothing can be cleared then, and nothing is said to be."""
    template = redlock.using(label="host:1(app.pay):id-1", min_hold=60)
    template("invoice:1").acquire().release()
    assert redlock("invoice:1").state().kind == "resting"
    assert refused("--task", "id-1")[0] == 1


def test_who_runs_is_named_by_the_lock_of_the_task(memory):
    """Not by the name of its message, even where the label has a digest for the task."""
    label = f"{A}:5:host:1({'d' * 64}):id-2"
    put(memory, "invoice:2", label, *range(5))
    put(memory, "run:a.task.with.a.long.name:number", label, *range(5))
    code, said = refused("--task", "id-2")
    assert code == 1
    assert said == "it runs and holds invoice:2: take that lock away instead"


def test_a_pattern_is_no_name(memory):
    """It is said what to do; but a name with such a character is one like others."""
    put(memory, "report:1", f"{A}:5:a", *range(5))
    code, said = refused("report:*")
    assert code == 1
    assert said.startswith("nobody holds 'report:*', and names are no patterns here: give the ")
    assert said.endswith("redlock_status 'report:*' shows")
    put(memory, "report:*", f"{A}:6:a", *range(5))
    assert "report:*: taken away on 5 of 5 nodes" in released("--yes", names=("report:*",))
    assert redlock("report:1").state().kind == "held"
