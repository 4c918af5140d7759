"""Another server behind the address of a node: a promoted replica, an empty one, a stranger."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.test import override_settings

from django_redlock import NodesUnavailable, conf, redlock
from django_redlock.core.protocol import Answer, Command
from django_redlock.core.reasons import ReasonCode
from django_redlock.leases.lease import Lease
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes import admission, connection, scripts
from django_redlock.nodes.address import from_url
from django_redlock.nodes.group import NodeGroup
from django_redlock.testing import EmbeddedNode, EmbeddedNodes
from tests.faults.test_faults import replicate
from tests.support.looked_at import check, status
from tests.support.loops import group_of, template
from tests.support.proxy import Proxy
from tests.support.replays import note_broken
from tests.support.waiting import eventually

PATIENCE = 20.0
LONG = 120.0  # seconds: nobody of these tests waits for that
ROUNDS = 60


class Site(NamedTuple):
    """Three masters behind proxies, and one more server.

    Attributes:
        spares: the one server that will stand behind the last address.
    """

    masters: EmbeddedNodes
    spares: EmbeddedNodes
    proxies: list[Proxy]

    @property
    def spare(self) -> EmbeddedNode:
        """That server."""
        return self.spares[0]

    @property
    def urls(self) -> list[str]:
        """The addresses that the settings name."""
        return [proxy.url for proxy in self.proxies]

    def promote(self) -> None:
        """Make the spare server a master, and count what it is asked from then on."""
        with closing(self.spare.client()) as admin:
            admin.replicaof("NO", "ONE")
            admin.execute_command("CONFIG", "RESETSTAT")

    def asked(self) -> set[str]:
        """What clients have asked of the spare server since."""
        with closing(self.spare.client(protocol=2)) as admin:
            said = admin.info("commandstats")
        return {name.removeprefix("cmdstat_") for name in said}

    def fail_over(self, *, cut: bool = True) -> None:
        """Let the last address lead to the spare server."""
        self.proxies[2].lead_to(self.spare.port, cut=cut)


@pytest.fixture
def site() -> Iterator[Site]:
    """The servers; nobody is connected."""
    with ExitStack() as stack:
        masters = stack.enter_context(EmbeddedNodes(3))
        spares = stack.enter_context(EmbeddedNodes(1))
        for nodes in (masters, spares):
            nodes.settings(RESTART_GUARD=False)
        proxies = [stack.enter_context(Proxy(node.port)) for node in masters]
        with closing(masters[2].client()) as admin:
            admin.config_set("repl-diskless-sync-delay", 0)
        yield Site(masters, spares, proxies)


@contextmanager
def in_force(site: Site, **options: Any) -> Iterator[None]:
    """The default alias, connected to all three."""
    alias = {"MAX_TTL": 60, "NODE_TIMEOUT": PATIENCE, "RESTART_GUARD": False} | options
    with override_settings(REDLOCK={"default": alias | {"NODES": site.urls}}):
        eventually(lambda: attempted() and codes() == ["", "", ""])
        yield
        conf.forget()


def attempted() -> bool:
    """Whether a lock can be had."""
    with suppress(NodesUnavailable), redlock("other"):
        return True
    return False


def codes() -> list[str]:
    """Why each node has no vote, as far as this process knows."""
    return [state.code for state in conf.backend("default").group.states()]


def told(command: Any) -> Any:
    """What a command says of the default alias."""
    return json.loads(command("--json")[1])["aliases"]["default"]


@contextmanager
def bare(lease: Lease) -> Iterator[None]:
    """What two of three nodes granted, for a rival had the third, needs both of them."""
    try:
        yield
    except NodesUnavailable:
        if sum(vote.answer is Answer.YES for vote in lease.grant.votes) == 3:
            raise


class Load:
    """Threads and a loop that take the same lock, until they are told to stop; or this thread."""

    def __init__(self, *, heavy: bool) -> None:
        self.heavy = heavy
        self.fences: list[int] = []
        self.failed: list[BaseException] = []
        self.inside = self.most = 0
        self.stop = threading.Event()

    @contextmanager
    def _noted(self, fence: int) -> Iterator[None]:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.fences.append(fence)
        try:
            yield
        finally:
            self.inside -= 1

    def _take(self) -> None:
        with redlock("contended", wait=LONG) as lease, self._noted(lease.fence), bare(lease):
            lease.extend()

    def _thread(self) -> None:
        while not self.stop.is_set():
            self._take()

    def _loop(self) -> None:
        async def take() -> None:
            while not self.stop.is_set():
                async with redlock("contended", wait=LONG) as lease:
                    with self._noted(lease.fence), bare(lease):
                        await lease.aextend()

        async def main() -> None:
            await asyncio.gather(take(), take())

        asyncio.run(main())

    def _caught(self, do: Callable[[], object]) -> None:
        try:
            do()
        except BaseException as error:  # noqa: BLE001 - the test tells of it
            self.failed.append(error)
            self.stop.set()

    def goes_on(self) -> None:
        """Wait until it has taken its lock many times more."""
        for _ in range(0 if self.heavy else ROUNDS):
            self._take()
        if not self.heavy:
            return
        enough = len(self.fences) + ROUNDS
        eventually(lambda: len(self.fences) >= enough or self.failed, within=LONG)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run for as long as the block; see that nothing fell."""
        each = (self._thread, self._thread, self._thread, self._loop) if self.heavy else ()
        threads = [threading.Thread(target=self._caught, args=(do,)) for do in each]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stop.set()
            for thread in threads:
                thread.join(LONG)
        assert (self.failed, self.most) == ([], 1)
        assert self.fences == sorted(set(self.fences))


@pytest.mark.slow
@pytest.mark.parametrize("heavy", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("cut", [True, False], ids=["connections end", "connections go on"])
def test_a_replica_that_is_promoted_at_the_same_address_has_no_vote(site, cut, heavy):
    """It is asked for no lock, and is named; locks and leases go on with the others."""
    load = Load(heavy=heavy)
    with in_force(site):
        replicate(site.spare, site.masters[2])
        with redlock("held") as lease:
            with load.running():
                load.goes_on()
                site.promote()
                site.fail_over(cut=cut)
                load.goes_on()
                if not cut:
                    site.masters.kill(2)
                    load.goes_on()
            lease.extend()
            eventually(lambda: attempted() and codes() == ["", "", ReasonCode.PROMOTED])
            with redlock("other") as other:
                assert other.grant.votes[2].code == ReasonCode.PROMOTED
            assert not site.asked() & {"eval", "evalsha", "set"}  # before redlock_check tries
            shown, examined = told(status), told(check)
            assert (shown["health"], shown["nodes"][2]["code"]) == ("degraded", "promoted")
            help_ = "put an independent master in its place, or delete its dump.rdb and restart it"
            assert help_ in " ".join(status()[1].split())
            errors = [e for e in examined["nodes"][2]["findings"] if e["level"] == "error"]
            assert [e["code"] for e in errors] == ["promoted"]
            assert errors[0]["text"].endswith(help_)
            assert not lease.lost
        with closing(site.spare.client(decode_responses=True)) as admin:
            Path(str(admin.config_get("dir")["dir"]), "dump.rdb").unlink()  # of its master
        site.spare.restart()
        eventually(lambda: attempted() and codes() == ["", "", ""], what="well again by itself")


def second_holder(site: Site) -> Any:
    """What a new process gets of a name that is held, by the server that replaced a node.

    The replica was cut off before the grant, which only this node and the first one know.
    """
    replicate(site.spare, site.masters[2])
    site.promote()
    site.proxies[1].cut()
    eventually(lambda: not attempted() or codes()[1] != "")
    lease = redlock("held", renew=False).acquire()
    assert [vote.answer is Answer.YES for vote in lease.grant.votes] == [True, False, True]
    site.proxies[1].heal()
    site.fail_over()
    with closing(group_of(site.urls, PATIENCE)) as group, suppress(NodesUnavailable):
        return template(group)("held").try_acquire()
    return None


@pytest.mark.slow
def test_a_promoted_replica_lets_no_second_holder_in(site):
    """The grant that it lacks was made by its master, whose place it has taken."""
    with in_force(site):
        assert second_holder(site) is None


@pytest.mark.slow
def test_a_promoted_replica_that_votes_lets_a_second_holder_in(site, monkeypatch):
    """Broken: its vote counts. The check above can fail."""
    note_broken("a promoted replica votes")
    monkeypatch.setattr(admission, "objection", lambda *_, **__: None)
    with in_force(site):
        assert second_holder(site) is not None


GUARDED = {"MAX_TTL": 1, "CLOCK_SKEW": 0.1, "TTL": 1, "RESTART_GUARD": True}  # 2.1 seconds


@pytest.mark.slow
@pytest.mark.parametrize("restarted", [True, False], ids=["restarted", "another server"])
def test_a_server_without_the_data_counts_as_restarted(site, restarted):
    """A client that knew the old one gives it no vote for the guard's time, however old it is."""
    for nodes in (site.masters, site.spares):
        nodes.settings(**GUARDED)
    with in_force(site, **GUARDED):
        began = time.monotonic()
        assert told(status)["nodes"][2]["answered"]  # the old one lives until then, or longer
        if restarted:
            site.masters.restart(2)
            site.proxies[2].lead_to(site.masters[2].port)
        else:
            site.fail_over()
        seen = set()
        while True:
            with redlock("other", renew=False, wait=PATIENCE) as lease:
                vote = lease.grant.votes[2]
            if vote.answer is Answer.YES:
                break
            seen.add(vote.code)
        assert time.monotonic() - began > 2
        eventually(lambda: told(status)["nodes"][2]["code"] == "")


@pytest.mark.slow
def test_a_new_process_cannot_know_that_a_server_was_replaced(site):
    """It gives a vote at once to a master that has our mark and is old enough."""
    site.spares.settings(**GUARDED)
    site.masters.settings(**GUARDED)
    site.fail_over()
    site.proxies[1].cut()  # so that its vote is needed
    guard = conf.guard_of(conf.DEFAULTS | GUARDED)
    addresses = list(map(from_url, site.urls))
    with (
        closing(NodeGroup(addresses, timeout=PATIENCE, guard=guard, prefix="redlock:")) as group,
        template(group)("held") as lease,
    ):
        assert lease.grant.votes[2].answer is Answer.YES


# -- a server that becomes a replica and is promoted back, under open connections -----------------


def unlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: no grant looks at the history of the server."""
    note_broken("a grant does not look at the history of the server")
    text, found = scripts.TEXT[Command.GRANT], "string.find(told, 'second_repl_offset:', 1, true)"
    assert text.count(found) == 1
    text = text.replace(found, "false")
    monkeypatch.setitem(scripts.TEXT, Command.GRANT, text)
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    monkeypatch.setitem(scripts.DIGEST, Command.GRANT, digest)


def come_and_go(server: EmbeddedNode, other: EmbeddedNode, meanwhile: Callable[[], object]) -> None:
    """Promote the other, a replica of the server, and the server again.

    Args:
        meanwhile: done while the server has not heard of that, and so serves still.
    """
    with closing(other.client()) as admin:
        admin.replicaof("NO", "ONE")
    meanwhile()
    replicate(server, other)
    with closing(server.client()) as admin:
        admin.replicaof("NO", "ONE")


@pytest.mark.slow
@pytest.mark.parametrize("looks", [True, False], ids=["ours", "broken"])
def test_a_node_that_came_and_went_has_no_vote_over_open_connections(site, monkeypatch, looks):
    """Of three; the lease has it and another one, and its grant is gone with the old role."""
    if not looks:
        unlooked(monkeypatch)
    server = site.masters[2]
    replicate(site.spare, server)
    lost: list[Lease] = []

    def acquire_without_the_second() -> None:
        site.proxies[1].cut()
        eventually(lambda: not attempted() or codes()[1] != "")
        lost.append(redlock("held", renew=False).acquire())
        assert [each.answer is Answer.YES for each in lost[0].grant.votes] == [True, False, True]
        site.proxies[1].heal()

    with in_force(site), closing(group_of(site.urls, PATIENCE)) as group:
        other = template(group, ttl=60)
        eventually(lambda: attempted_by(other))  # its connections are open from here on
        come_and_go(server, site.spare, acquire_without_the_second)
        site.proxies[0].cut()
        if looks:
            with pytest.raises(NodesUnavailable) as refused:
                other("held").acquire()
            assert refused.value.votes[2].code == ReasonCode.EMPTIED
        else:
            assert other("held").try_acquire() is not None
        assert lost[0].remaining() > 0


def attempted_by(lock: LockTemplate) -> bool:
    """Whether all nodes grant a lock."""
    with suppress(NodesUnavailable), lock("seen") as lease:
        return [each.answer for each in lease.grant.votes] == [Answer.YES] * 3
    return False


# -- FAILOVER: a single node that is a service with failover --------------------------------------


class Service:
    """A master and its replica behind one address, as a provider runs them."""

    def __init__(self, stack: ExitStack) -> None:
        self.servers = [stack.enter_context(EmbeddedNodes(1))[0] for _ in range(3)]
        self.proxy = stack.enter_context(Proxy(self.servers[0].port))
        self.settings = {
            **GUARDED,
            "FAILOVER": True,
            "NODE_TIMEOUT": 5.0,
            "NODES": [self.proxy.url],
        }
        for server in self.servers:
            with closing(server.client()) as admin:
                admin.config_set("repl-diskless-sync-delay", 0)
        with in_charge(self):
            eventually(attempted, within=PATIENCE, what="admitted, after its guard")
        replicate(self.servers[1], self.servers[0])
        eventually(lambda: all(server.uptime() > 2 for server in self.servers))

    def lag(self) -> None:
        """Let the replica hear nothing more of its master; it keeps what it has."""
        with closing(self.servers[1].client()) as admin:
            admin.replicaof("127.0.0.1", 1)

    def fail_over(self) -> None:
        """Kill the master and promote its replica; the next server becomes the replica of that."""
        self.servers.pop(0).kill()
        with closing(self.servers[0].client()) as admin:
            admin.replicaof("NO", "ONE")
        self.proxy.lead_to(self.servers[0].port)
        if len(self.servers) > 1:
            replicate(self.servers[1], self.servers[0])

    def change_roles(self, **config: str) -> None:
        """Promote the replica as a provider does that maintains the master; all connections stay.

        The old master is a replica of a server that it does not reach.
        """
        old, new = self.servers[:2]
        with closing(new.client()) as admin:
            admin.replicaof("NO", "ONE")
        self.proxy.lead_to(new.port, cut=False)
        with closing(old.client()) as admin:
            for name, value in config.items():
                admin.config_set(name.replace("_", "-"), value)
            admin.replicaof("127.0.0.1", 1)


@pytest.fixture
def service() -> Iterator[Service]:
    """One that has worked for a while."""
    with ExitStack() as stack:
        yield Service(stack)


@contextmanager
def in_charge(service: Service, **options: Any) -> Iterator[None]:
    """The default alias, with it as the only node."""
    with override_settings(REDLOCK={"default": service.settings | options}):
        yield
        conf.forget()


def newcomer(service: Service, name: str, *, ttl: float = 1) -> Lease | None:
    """What a process gets that knows nothing of the servers before."""
    guard, addresses = conf.guard_of(conf.DEFAULTS | GUARDED), [from_url(service.proxy.url)]
    with closing(
        NodeGroup(addresses, timeout=PATIENCE, guard=guard, prefix="redlock:", failover=True)
    ) as group:
        return template(group, ttl=ttl)(name).try_acquire()


def votes(service: Service) -> bool:
    """Whether a newcomer gets a lock."""
    with suppress(NodesUnavailable):
        return newcomer(service, "other") is not None
    return False


def second_holder_of(service: Service) -> Lease | None:
    """What a newcomer gets of a name that is held; the promoted replica has not heard of it."""
    service.lag()
    with in_charge(service, TTL=1, MAX_TTL=1):
        held = redlock("held", wait=PATIENCE, renew=False).acquire()
        service.fail_over()
        try:
            return newcomer(service, "held")
        except NodesUnavailable as error:
            refused = error
        finally:
            held.release()
    assert refused.votes[0].code == ReasonCode.RESTART_GUARD
    assert "promoted a short while ago" in str(refused)
    return None


@pytest.mark.slow
def test_with_failover_a_promoted_replica_votes_after_the_guard(service):
    """However old it is and whatever it has copied; and the next one waits again."""
    assert service.servers[1].uptime() > 2
    for _ in range(2):  # a third server is the replica of the second
        began = time.monotonic()
        assert second_holder_of(service) is None
        eventually(lambda: votes(service), within=PATIENCE)
        assert time.monotonic() - began > GUARDED["MAX_TTL"] + 1


@pytest.mark.slow
def test_a_copied_mark_that_counts_lets_a_second_holder_in(service, monkeypatch):
    """Broken: the mark that the replica has of its master counts. The check above can fail.

    A grant that looks at the history would find out, too.
    """
    unlooked(monkeypatch)
    parse = admission.parse
    monkeypatch.setattr(admission, "parse", lambda info: parse(info)._replace(promoted=False))
    assert second_holder_of(service) is not None


@pytest.mark.slow
@pytest.mark.parametrize("failover", [True, False], ids=["failover", "without"])
@pytest.mark.parametrize("looks", [True, False], ids=["ours", "broken"])
def test_a_single_node_that_came_and_went_has_no_vote_over_open_connections(
    service, monkeypatch, failover, looks
):
    """The next connection tells why: the guard counts anew, or the node has no vote any more."""
    if not looks:
        unlooked(monkeypatch)
    service.proxy.uptime = 10_000  # so that the guard of leases which outlive the test is over
    first, second = service.servers[:2]
    lost: list[Lease] = []
    with (
        in_charge(service, MAX_TTL=60, TTL=60, FAILOVER=failover),
        closing(group_of([service.proxy.url], PATIENCE)) as group,
    ):
        assert attempted()  # this process has an open connection, and so has that other one
        other = template(group, ttl=60)
        other("seen").acquire().release()
        come_and_go(first, second, lambda: lost.append(other("held").acquire()))
        if looks:
            with pytest.raises(NodesUnavailable) as refused:
                redlock("held").acquire()
            assert refused.value.votes[0].code == ReasonCode.EMPTIED
            codes = {ReasonCode.RESTART_GUARD if failover else ReasonCode.PROMOTED}
            eventually(lambda: told_of("held") == codes)
        else:
            assert redlock("held", renew=False).try_acquire() is not None
        assert lost[0].remaining() > 0


def told_of(name: str) -> set[str]:
    """Why the only node has no vote on a name."""
    with pytest.raises(NodesUnavailable) as refused:
        redlock(name).acquire()
    return {each.code for each in refused.value.votes}


@pytest.mark.slow
def test_a_first_replica_ends_no_connection(service):
    """The id of a master's data is new then, and it has lost nothing."""
    alone = service.servers[2]
    service.proxy.lead_to(alone.port)
    with closing(group_of([service.proxy.url], PATIENCE)) as group:
        eventually(lambda: votes(service), within=PATIENCE)
        lock = template(group)
        lock("seen").acquire().release()
        with closing(alone.client(decode_responses=True)) as admin:
            before = admin.info("replication")["master_replid"]
            replicate(service.servers[1], alone)
            assert admin.info("replication")["master_replid"] != before
        lock("seen").acquire().release()


STALE = {"READONLY": "yes", "MASTERDOWN": "no"}  # whether a replica serves old data


def locked_in_a_loop() -> bool:
    """Whether a task gets a lock; its loop has the connections of the threads."""

    async def main() -> bool:
        with suppress(NodesUnavailable):
            async with redlock("other"):
                return True
        return False

    return asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("locked", [attempted, locked_in_a_loop])
@pytest.mark.parametrize("stale", STALE.values(), ids=STALE)
def test_a_process_leaves_a_master_that_became_a_replica(service, stale, locked):
    """Its connections stay open; it looks the address up again, and waits for the guard."""
    with in_charge(service):
        eventually(locked)
        service.change_roles(replica_serve_stale_data=stale)
        eventually(locked, within=PATIENCE, what="a lock of the new master")
        lease = redlock("held", renew=False).acquire()
        with closing(service.servers[1].client()) as admin:
            assert admin.exists("redlock:lock:held")
        lease.release()


@pytest.mark.slow
def test_who_stays_with_a_master_that_became_a_replica_gets_no_lock(service, monkeypatch):
    """Broken: a reply that turns away ends no connection. The check above can fail."""
    note_broken("a reply that turns away ends no connection")
    monkeypatch.setattr(connection, "turns_away", lambda _: False)
    with in_charge(service):
        eventually(attempted)
        service.change_roles()
        eventually(lambda: votes(service), within=PATIENCE, what="a lock of a new process")
        for _ in range(20):
            assert not attempted()
            assert codes() != [ReasonCode.RESTART_GUARD]


@pytest.mark.slow
def test_without_failover_the_error_names_the_setting(service):
    """The error of a single node names FAILOVER, and so does redlock_check."""
    with in_charge(service, FAILOVER=False):
        service.fail_over()
        with pytest.raises(NodesUnavailable, match=r"'FAILOVER': True in REDLOCK\['default'\]"):
            redlock("name").acquire()
        (found,) = [e for e in told(check)["nodes"][0]["findings"] if e["code"] == "promoted"]
        assert "'FAILOVER': True in REDLOCK['default']" in found["text"]


@pytest.mark.slow
def test_who_looks_at_a_promoted_replica_begins_no_guard(service):
    """Nor does it say that it votes: nobody has begun to count."""
    with in_charge(service):
        service.fail_over()
        for _ in range(2):
            (node,) = told(check)["nodes"]
            assert "unseen" in {each["code"] for each in node["findings"]}


@pytest.mark.slow
def test_a_split_brain_has_two_holders(service):
    """Not promised: some clients reach the old master for longer than the guard."""
    old = service.servers[0]
    service.lag()
    with closing(service.servers[1].client()) as admin:
        admin.replicaof("NO", "ONE")
    replicate(service.servers[2], service.servers[1])
    aliases = {"default": service.settings, "old": service.settings | {"NODES": [old.url]}}

    def both() -> bool:
        with (
            suppress(NodesUnavailable),
            redlock("held", wait=1, renew=False) as first,
            redlock.using("old")("held", wait=1, renew=False) as second,
        ):
            return not (first.lost or second.lost)
        return False

    with override_settings(REDLOCK=aliases):
        service.proxy.lead_to(service.servers[1].port)
        eventually(lambda: votes(service), within=PATIENCE)
        eventually(both, within=PATIENCE)
        conf.forget()


@pytest.mark.parametrize("masters", [1, 2])
def test_two_masters_at_one_address_have_two_holders(masters):
    """Not promised: each process asks the master that it reaches; one master has one holder."""
    with EmbeddedNodes(masters) as servers, Proxy(servers[0].port) as proxy:
        proxy.uptime = 10**6  # seconds: the guard is over
        for server in servers:
            server.vouch("redlock:")
        alias = {"NODES": [proxy.url], "NODE_TIMEOUT": PATIENCE, "FAILOVER": True, "RENEW": False}
        first, second = (conf.make("default", alias) for _ in range(2))
        with LockTemplate(lambda _: first)("held") as held:
            proxy.lead_to(servers[-1].port, cut=False)
            other = LockTemplate(lambda _: second)("held").try_acquire()
            assert (other is None) is (masters == 1)
            held.ensure()
            if other is not None:
                other.ensure()
                other.release()


@pytest.mark.slow
def test_a_server_that_forgets_its_promotion_too_soon_votes_and_is_named(service):
    """Without a replica for its repl-backlog-ttl it tells no more that it was promoted."""
    promoted = service.servers[1]
    del service.servers[2:]
    with closing(promoted.client(decode_responses=True)) as admin:
        admin.config_set("repl-backlog-ttl", 1)
        service.fail_over()
        with in_charge(service):
            assert "forgets_promotion" in {e["code"] for e in told(check)["nodes"][0]["findings"]}
            eventually(lambda: admin.info("replication")["second_repl_offset"] == -1)
            assert newcomer(service, "other", ttl=30) is not None
