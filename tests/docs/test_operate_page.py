"""The procedures of "Restart, replace, change", and the lists of nodes of "Set up the nodes".

They are done on real nodes, and so is what goes wrong without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from io import StringIO
from itertools import combinations
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import override_settings

from django_redlock import NodesUnavailable, conf, redlock, redlocks
from django_redlock.core.reasons import ReasonCode
from django_redlock.leases.lease import Lease
from django_redlock.locks.template import LockTemplate
from django_redlock.testing import EmbeddedNodes
from tests.docs.pages import ROOT, examples
from tests.docs.test_acl import PASSWORD, acl_rules
from tests.docs.test_runbook_page import RUNBOOK
from tests.support.servers import redis_version
from tests.support.waiting import eventually

OPERATE = ROOT / "docs/how-to/operate.md"
PATIENT: dict[str, Any] = {"NODE_TIMEOUT": 10, "MAX_TTL": 60, "RESTART_GUARD": False}
PREFIX = "shop:redlock:"  # the new one of the page


def client(setting: dict[str, Any]) -> LockTemplate:
    """A process with these settings, as far as nodes can tell."""
    backend = conf.make("default", setting)
    return LockTemplate(lambda _: backend)


def status(*arguments: str) -> tuple[int, str]:
    """Run `redlock_status`; its exit status, and what it prints."""
    out = StringIO()
    try:
        call_command("redlock_status", *arguments, stdout=out, no_color=True)
    except SystemExit as ended:
        return int(ended.code or 0), out.getvalue()
    return 0, out.getvalue()


def under_guard(lock: LockTemplate) -> bool:
    """Whether no majority votes, because nodes are under the restart guard."""
    try:
        lock("guarded").try_acquire()
    except NodesUnavailable as error:
        return any(vote.code == ReasonCode.RESTART_GUARD for vote in error.votes)
    return False


def delete(nodes: EmbeddedNodes, name: str, *places: int) -> None:
    """Delete the key by hand, as the page shows it."""
    for place in places:
        with closing(nodes[place].client()) as admin:
            admin.execute_command("DEL", f"redlock:lock:{name}")


# -- another list of nodes ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def four() -> Iterator[EmbeddedNodes]:
    """Four nodes: A, B and C, and D that comes later."""
    with EmbeddedNodes(4) as nodes:
        yield nodes


def listing(nodes: EmbeddedNodes, letters: str) -> LockTemplate:
    """A process with a list of nodes."""
    return client(PATIENT | {"NODES": [nodes.urls["ABCD".index(letter)] for letter in letters]})


def held_by_a_majority(
    nodes: EmbeddedNodes, letters: str, missing: tuple[str, ...], name: str
) -> Lease:
    """A lease of a process with a list that others kept from some of its nodes."""
    for letter in missing:
        with closing(nodes["ABCD".index(letter)].client()) as admin:
            admin.set(f"redlock:lock:{name}", "foreign", px=60_000)
    lease = listing(nodes, letters)(name, renew=False).acquire()
    delete(nodes, name, *map("ABCD".index, missing))
    return lease


def gets_it(nodes: EmbeddedNodes, letters: str, name: str) -> bool:
    """Whether a process with this list gets the name."""
    return listing(nodes, letters)(name).try_acquire() is not None


def test_an_exchanged_node_lets_two_in(four):
    """As the page says: one on A and B by the old list, one on C and D by the new one."""
    lease = held_by_a_majority(four, "ABC", ("C",), "exchanged")
    assert gets_it(four, "BCD", "exchanged")
    lease.ensure()


@pytest.mark.parametrize(("old", "new"), [("ABC", "ABCD"), ("ABCD", "BCD")])
def test_an_added_and_a_removed_node_let_nobody_in(four, old, new):
    """Whichever majority has it, a process with the list of the next step does not, and back."""
    for mine, others in [(old, new), (new, old)]:
        for number in range(len(mine)):
            for missing in combinations(mine, number):
                if len(mine) - number <= len(mine) // 2:
                    continue
                name = f"{mine}-{others}-{''.join(missing)}"
                held_by_a_majority(four, mine, missing, name)
                assert not gets_it(four, others, name)


# -- the key prefix -------------------------------------------------------------------------------


def rule(nodes: EmbeddedNodes) -> None:
    """Make the user of the reference on each node."""
    for node in nodes:
        with closing(node.client()) as admin:
            rules = acl_rules()
            if (7, 0) <= redis_version(node) < (7, 2):
                rules.remove("+client|setinfo")
            admin.execute_command("ACL SETUSER", "redlock", *rules)


@pytest.mark.slow
@pytest.mark.parametrize(
    "waits", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["no guard", "the guard"]
)
def test_another_prefix_excludes_nobody_and_both_locks_do(waits):
    """The page's steps: rights, a count that one command starts, and a release that takes both.

    `make nightly` waits for the guard: 7 s, beside a lock of 6 s that a stall of this machine ends.
    """
    files = examples(OPERATE)
    with EmbeddedNodes(3) as nodes, ExitStack() as stack:
        default = nodes.settings(MAX_TTL=6) if waits else nodes.settings(**PATIENT)
        rule(nodes)
        default["NODES"] = [
            {"URL": url, "USERNAME": "redlock", "PASSWORD": PASSWORD} for url in nodes.urls
        ]
        names: dict[str, Any] = {}
        exec(files["mysite/settings.py"], names)  # noqa: S102 - our own page
        aliases = {alias: shown | default for alias, shown in names["REDLOCK"].items()}
        assert aliases["next"]["KEY_PREFIX"] == PREFIX
        aliases["next"]["RESTART_GUARD"] = True
        exec(files["billing/prefixes.py"], names)  # noqa: S102 - our own page
        stack.enter_context(override_settings(REDLOCK=aliases))

        lease = redlock("x").acquire()
        with pytest.raises(NodesUnavailable):  # no right to these keys
            redlocks["next"]("x").try_acquire()
        allow(nodes)
        eventually(
            lambda: under_guard(redlocks["next"]), within=60
        )  # a refused login is remembered
        assert status("--alias", "default")[0] == 0
        if not waits:
            over = aliases["next"] | {"RESTART_GUARD": False}
            stack.enter_context(override_settings(REDLOCK=aliases | {"next": over}))
        eventually(lambda: status("--alias", "next")[0] == 0, within=60, every=0.1)
        with redlocks["next"]("x") as second:  # two holders of one name
            lease.ensure()
            assert second.fence > lease.fence

        with names["both"]("y") as both:
            assert redlock("y").try_acquire() is None
            assert redlocks["next"]("y").try_acquire() is None
            assert both.fence > lease.fence
        redlock("y").acquire().release()


def allow(nodes: EmbeddedNodes) -> None:
    """Give the user the new keys, by the page's own command."""
    page = OPERATE.read_text()
    command = f"ACL SETUSER redlock ~{PREFIX}*"
    assert f"`{command}`" in page
    for node in nodes:
        with closing(node.client()) as admin:
            admin.execute_command(*command.split())


# -- MAX_TTL --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_process_with_the_smaller_max_ttl_grants_a_longer_lock_again():
    """Its guard is over before the lock is; a process that knows the larger one still waits."""
    with EmbeddedNodes(3) as nodes:
        small = nodes.settings()  # MAX_TTL is 2
        large = small | {"MAX_TTL": 600, "TTL": 600}
        long = client(large | {"RESTART_GUARD": False})("report", renew=False).acquire()
        for place in range(3):
            nodes.restart(place)
        client(small)("report", wait=60).acquire()
        long.ensure()
        assert under_guard(client(large))


# -- a lock that is stuck -------------------------------------------------------------------------


def foreign(nodes: EmbeddedNodes, name: str, *places: int) -> None:
    """A key of another client that never expires."""
    for place in places:
        with closing(nodes[place].client()) as admin:
            admin.set(f"redlock:lock:{name}", "foreign")


@pytest.mark.slow
def test_a_key_of_another_client_is_freed_by_the_command_of_the_page(patient_nodes):
    """The command deletes that key on every node, and the waiter gets the lock.

    The command refuses a key on a minority of the nodes. Such a key is deleted by hand, as the page
    says: that node has no key of ours.
    """
    assert "redlock_release NAME --now --yes`" in RUNBOOK.read_text()
    foreign(patient_nodes, "report", 0, 1, 2, 3)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(redlock("report", renew=False).acquire, wait=60)
        eventually(lambda: redlock("report").state().holder == "")
        with pytest.raises(CommandError, match="with --now"):
            call_command("redlock_release", "report", "--yes")
        call_command("redlock_release", "report", "--now", "--yes", stdout=StringIO())
        waiting.result().release()
    foreign(patient_nodes, "minority", 3, 4)
    with pytest.raises(CommandError, match="never expires on 2 of 5 nodes: end that"):
        call_command("redlock_release", "minority", "--now", "--yes")
    with redlock("minority"):
        delete(patient_nodes, "minority", 3, 4)
        assert status("minority")[1].splitlines()[-1].split()[-1] == "held"
    assert redlock("minority").state().kind == "free"
