"""One node, seen by a person: what it says of itself, and what is wrong or risky with it.

``NodeReport`` is the record of a node for every face. ``survey`` fills it by the connections that
locks use. ``probe`` fills it by a connection of its own, for ``redlock_check``: it asks what no
lock needs to know, and carries out the scripts of the locks on a name of its own. What is wrong,
the node says: a right that the user lacks, memory that is full, a disk that takes no writes.
``examine`` probes all nodes of a deployment and compares what they say.
"""

from __future__ import annotations

import enum
import math
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

from hiredis import ReplyError
from redis.connection import Connection as RedisConnection
from redis.connection import UnixDomainSocketConnection

from django_redlock.core import hold
from django_redlock.core import wait as waiting
from django_redlock.core.acquire import attempt
from django_redlock.core.commands import Extend, Extension, Memory, Survey
from django_redlock.core.errors import LockTaken
from django_redlock.core.policy import Policy, boottime, microseconds, milliseconds
from django_redlock.core.protocol import WITH_EPOCH, Answer, LockKeys, NextTry, Request, Steps, Vote
from django_redlock.core.quorum import all_heard
from django_redlock.core.reasons import Reason, ReasonCode, because, code_of, describe
from django_redlock.nodes import admission, scripts
from django_redlock.nodes.address import Address
from django_redlock.nodes.background import WorkerThreads, end
from django_redlock.nodes.faults import LONGEST, Refused, complaint, why_unreached
from django_redlock.nodes.handshake import Admission, NodeReplies, log_in, send
from django_redlock.nodes.replies import ANOTHER, vote

# -- the record -----------------------------------------------------------------------------------


class NodeState(enum.StrEnum):
    """Whether a node votes."""

    UP = "up"
    NO_VOTE = "no vote"  # it replies, but may not vote
    DOWN = "down"


class Health(enum.StrEnum):
    """Whether locks can be taken; from good to bad."""

    OK = "ok"
    DEGRADED = "degraded"
    NOT_YET = "not_yet"  # only time is missing; a survey says no_majority
    NO_MAJORITY = "no_majority"

    @classmethod
    def worst(cls, found: Iterable[Health]) -> Health:
        """Return the worst of these."""
        return max(found, key=list(cls).index)


class Level(enum.StrEnum):
    """How bad a finding is."""

    NOTE = "note"  # nothing must be done
    WARNING = "warning"  # locks work, and may fail or be lost some day
    ERROR = "error"  # the node has no vote


WORST_FIRST: Final = tuple(reversed(Level))


class Finding(NamedTuple):
    """Something that is wrong or risky.

    Attributes:
        level: how bad it is.
        reason: what it is; most sentences say what to do, for the others see ``reasons.action``.
    """

    level: Level
    reason: Reason


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What is known of a node. A survey leaves the last six as they are, and has no findings.

    Attributes:
        label: ``host:port/db``.
        heard: whether it replied.
        voting: whether it votes now.
        reason: why it does not, as a survey has it.
        software, role: as it said; "" if it did not.
        uptime: seconds, or None.
        round_trip: seconds of a small command, or None.
        guard_left: seconds left of the restart guard; infinite: nobody has begun to count them;
            None: it did not tell.
        clock_off: seconds that its clock is ahead of this machine's (negative: behind), where that
            is too much; else 0.
        maxmemory: bytes that it may use; 0: no limit, so that it evicts nothing; None: it did not
            tell, and neither the next two.
        maxmemory_policy: what it does when its memory is full.
        evicted_keys: how many it has deleted to make room, since it was started.
        clock_ahead: seconds that its clock is ahead of this machine's, or None.
        append_only, snapshots: whether it keeps its data in this way; None: it did not tell.
        rights: whether its user may do all that locks need; None: it could not be tried.
        findings: the worst first.
        run_id: of its process; "" if it did not tell.
    """

    label: str
    heard: bool
    voting: bool
    reason: Reason | None = None
    software: str = ""
    role: str = ""
    uptime: float | None = None
    round_trip: float | None = None
    guard_left: float | None = 0.0
    clock_off: float = 0.0
    maxmemory: int | None = None
    maxmemory_policy: str | None = None
    evicted_keys: int | None = None
    clock_ahead: float | None = None
    append_only: bool | None = None
    snapshots: bool | None = None
    rights: bool | None = None
    findings: tuple[Finding, ...] = ()
    run_id: str = ""

    @property
    def state(self) -> NodeState:
        """Whether it votes, only replies, or is down."""
        if self.voting:
            return NodeState.UP
        return NodeState.NO_VOTE if self.heard else NodeState.DOWN

    @property
    def why(self) -> str:
        """The reason as a sentence, for people; "" if it votes."""
        return describe(self.reason)

    @property
    def code(self) -> str:
        """The reason's code, for programs; "" if it votes."""
        return code_of(self.reason)

    @property
    def level(self) -> Level | None:
        """The worst level of its findings; None: there are none."""
        return self.findings[0].level if self.findings else None

    @property
    def evicts(self) -> bool | None:
        """Whether it may delete a lock that is held; None: it did not tell."""
        if self.maxmemory is None:
            return None
        return self.maxmemory > 0 and self.maxmemory_policy != "noeviction"

    @property
    def warning(self) -> Reason | None:
        """Why it may delete locks that are held; None: it does not."""
        return eviction([self]) if self.evicts else None

    def found(self, *more: Finding) -> NodeReport:
        """Return the report with more findings, which may take its vote."""
        findings = sorted((*self.findings, *more), key=lambda each: WORST_FIRST.index(each.level))
        wrong = any(each.level is Level.ERROR for each in findings)
        return replace(self, findings=tuple(findings), voting=not wrong and self.guard_left == 0)


def eviction(nodes: Sequence[NodeReport]) -> Reason | None:
    """Return the reason that names the policies of the nodes that evict; None: there are none."""
    evicting = [node for node in nodes if node.evicts]
    if not evicting:
        return None
    policies = ", ".join(sorted({str(node.maxmemory_policy) for node in evicting}))
    evicted = sum(node.evicted_keys or 0 for node in evicting)
    return because(ReasonCode.EVICTS, policy=policies, evicted=evicted)


# -- a probe: ask one node all that can be asked --------------------------------------------------


class Expected(NamedTuple):
    """What the settings of an alias say of its nodes.

    Attributes:
        alias: its name.
        addresses: of the nodes; empty if they are in memory.
        size: how many nodes there are.
        majority: how many must vote.
        timeout: seconds that a node may take to reply: NODE_TIMEOUT.
        guard: seconds of the restart guard; 0: there is none.
        skew: seconds by which clocks may differ, with a guard.
        failover: whether a promoted replica has a vote when the guard is over.
        prefix: of every key.
    """

    alias: str
    addresses: tuple[Address, ...]
    size: int
    majority: int
    timeout: float
    guard: float
    skew: float
    prefix: str
    failover: bool = False

    @property
    def only_node_of(self) -> str:
        """Return the alias if it has a single node, else ""."""
        return self.alias if self.size == 1 else ""

    def objection(self, facts: admission.ServerInfo) -> Reason | None:
        """Return why a node can never vote as it is, or None."""
        return admission.objection(facts, failover=self.failover, only_node_of=self.only_node_of)


class Replies(NamedTuple):
    """What a node replied to the questions of a probe, as far as it did.

    Attributes:
        refusal: why it cannot be used; None if it can, as far as that is known.
        facts: by its INFO and its clock; None if it did not tell.
        round_trip: seconds of a small command; None if none was answered.
        ahead: seconds that its clock is ahead of this machine's (negative: behind), or None.
        guard_left: seconds until the restart guard lets it vote; infinite: nobody has begun to
            count them; None: it could not be asked, or there is no guard.
        info: the rows of its INFO, by name.
        config: what it told of its configuration; empty where the user may not ask.
        complaints: the errors with which it replied to the scripts, each once.
        tried: whether the scripts were carried out.
    """

    refusal: Reason | None = None
    facts: admission.ServerInfo | None = None
    round_trip: float | None = None
    ahead: float | None = None
    guard_left: float | None = None
    info: Mapping[str, str] = {}
    config: Mapping[str, str] = {}
    complaints: tuple[Reason, ...] = ()
    tried: bool = False


LATE: Final = Replies(refusal=because(ReasonCode.CONNECT_TIMEOUT))


def probe(address: Address, expected: Expected, timeout: float) -> NodeReport:
    """Ask a node all that can be asked; whatever is wrong is found, and nothing raised.

    Args:
        timeout: seconds for each step.
    """
    connection = None
    try:
        connection = address.connection(timeout)
        heard = log_in(connection)
        replies = _Conversation(connection, heard).replies(expected)
    except Exception as error:  # noqa: BLE001 - a provider of credentials may raise anything
        replies = Replies(refusal=why_unreached(error, tls=address.tls))
    finally:
        if connection is not None:
            connection.disconnect()
    return judge(address, replies, expected)


ROUND_TRIPS: Final = 5  # of which the quickest counts: this process may be busy
SECTIONS: Final = (*("server", "replication", "memory", "stats", "persistence"), "keyspace")
CONFIG: Final = ("save", "appendfsync", "repl-backlog-ttl")
MOMENT: Final = 1.0  # seconds for which what a probe writes lasts, if it cannot delete it
NAME: Final = "check"
MISSING: Final = re.compile(r"no permissions to .+?(?= script: |$)", re.IGNORECASE)
BRIEFLY: Final = "0.01"  # seconds; Redis 6.2 rounds 0.001 down to 0, which is for ever


class _Conversation:
    """The questions to one node, and what came back."""

    def __init__(
        self, connection: RedisConnection | UnixDomainSocketConnection, heard: NodeReplies
    ) -> None:
        self._connection, self._heard = connection, heard

    def replies(self, expected: Expected) -> Replies:
        """Ask everything."""
        sections = self._ask(bytes, *(("INFO", each) for each in SECTIONS))
        info = b"\n".join(each for each in sections if isinstance(each, bytes))
        facts = admission.parse(info) if info else None  # first: it tells a Sentinel
        rows = (row.partition(":") for row in info.decode("utf-8", "replace").splitlines())
        looks = self._looks()
        config = self._ask(None, *(("CONFIG", "GET", each) for each in CONFIG))
        found = Replies(
            info={name: value for name, _, value in rows if value},
            config=dict(filter(None, map(_pair, config))),
        )
        if looks:
            best = min(looks, key=_took)
            ahead = best.clock - (best.sent + best.came) / 2
            found = found._replace(round_trip=_took(best), ahead=ahead)
            if facts is not None:
                facts = admission.seen(facts, best, None, expected.skew)
        found = found._replace(facts=facts)
        if facts is not None and expected.objection(facts):
            return found  # of a replica, the reply to a script says no more
        complaints: list[Reason] = []
        if facts is not None:
            age = admission.age(facts, boottime())
            question = Admission(f"{expected.prefix}fences", expected.guard, age, facts, epoch="")
            (reply,) = self._ask(None, question.command)  # as a lock's connection, without a mark
            if isinstance(reply, ReplyError):
                complaints.append(_said_of(reply))
            elif expected.guard and not facts.off:
                found = found._replace(guard_left=question.read(reply)[0])
        complaints += self._use_a_name(expected.prefix, facts)
        return found._replace(complaints=tuple(dict.fromkeys(complaints)), tried=True)

    def _looks(self) -> list[admission.Look]:
        """Ask for its time, again and again; none: the user may not ask."""
        looks = []
        for _ in range(ROUND_TRIPS):
            sent, asked = microseconds(), boottime()
            (said,) = self._ask(list, ("TIME",))
            if isinstance(said, ReplyError):
                break
            clock = admission.clock_of(said)
            looks.append(admission.Look(clock, sent / 1e6, microseconds() / 1e6, asked, boottime()))
        return looks

    def _use_a_name(self, prefix: str, facts: admission.ServerInfo | None) -> list[Reason]:
        """Use a name as locks do; return the errors.

        All keys begin with a text of their own, also those of the counters and the indexes, and
        are deleted in the end. So nothing that is held, counted or waited for changes.
        """
        policy = Policy(size=1, prefix=f"{prefix}check-{secrets.token_hex(8)}:")
        target, history = policy.target([NAME]), facts.history if facts else ""
        written = (target.fences, target.held, target.waits, *target.queues)
        admit = ("EVAL", scripts.ADMIT, 1, target.fences, policy.nonce(), 0, 0, NAME, history)
        # What scripts try and do without, and what a connection and a waiter need.
        others: list[tuple[str | int, ...]] = [
            ("ZSCORE", target.waits, NAME),
            ("ZREMRANGEBYSCORE", target.waits, 0, 0),
            ("ZREMRANGEBYRANK", target.waits, 0, -1),
            ("RPUSH", target.queues[0], NAME),
            ("BLPOP", target.queues[0], BRIEFLY),
            ("CLIENT", "ID"),
            ("CLIENT", "UNBLOCK", 0),
            *(("PEXPIRE", key, milliseconds(MOMENT)) for key in written),
            ("DEL", *written, *target.keys),
        ]
        replies = self._ask(None, *(("SCRIPT", "LOAD", text) for text in scripts.TEXT.values()))
        if not any(isinstance(each, ReplyError) for each in replies):
            replies = self._ask(None, admit)
            replies += self._carry_out(_as_locks_do(policy, target, prefix), NAME + history)
            replies += self._ask(None, *others)
        return [_said_of(each) for each in replies if isinstance(each, ReplyError)]

    def _carry_out(self, steps: Steps[None], epoch: str) -> list[object]:
        """Carry out steps on this node alone, up to the first error; return the replies."""
        replies: list[object] = [[]]
        votes: list[Vote] | None = None
        with suppress(StopIteration):
            while isinstance(replies[-1], list):
                request: Any = steps.send(votes)
                replies += self._ask(None, _packed(request, epoch))
                nonce = request.nonce.encode()
                votes = [vote(request, "", nonce, replies[-1]) or Vote("", Answer.UNKNOWN)]
        return replies

    def _ask(self, kind: type | None, *commands: tuple[str | int, ...]) -> list[object]:
        """Send commands at once; return their replies, among them refusals of single commands.

        Args:
            kind: type of the first reply, if the user has the right; None: any.

        Raises:
            Refused: the first reply is of another type, or an error of the node itself.
            OSError: the connection is lost, or nothing comes.
        """
        send(self._connection, *commands)
        replies = [self._heard.answer() for _ in commands]
        if kind is None or isinstance(replies[0], kind):
            return replies
        if not isinstance(replies[0], ReplyError):
            raise Refused(ANOTHER)
        reason = complaint(replies[0])
        if reason.code is not ReasonCode.NO_PERMISSION:
            raise Refused(reason)
        return replies


def _as_locks_do(policy: Policy, target: LockKeys, prefix: str) -> Steps[None]:
    """Take a name, wait for it, release it, be woken, extend it, and look at what is held."""
    take = partial(attempt, policy, target, label=NAME, ttl=MOMENT, patient=True)
    first, _ = yield from take()
    _, taken = yield from take()  # by a waiter
    if first is None or not isinstance(taken, LockTaken):
        return
    yield from hold.release(policy, first)
    wakeup = yield from waiting.claim(policy, NextTry(target), taken.votes)
    second, _ = yield from take(wakeup=wakeup)
    if second is None:
        return
    leases = [Extension(second.nonce, target, milliseconds(MOMENT))]
    yield Extend(policy.nonce(), all_heard, leases)
    indexes = f"{prefix}held", f"{prefix}waits", f"{prefix}lock:"
    yield Survey(policy.nonce(), all_heard, *indexes, 1, each={0: 0})
    yield Memory(policy.nonce(), all_heard, target.fences, target.waits, 1)
    yield from hold.release(policy, second)


def _packed(request: Request, epoch: str) -> tuple[str | int, ...]:
    keys, arguments = request.wire()
    last = (epoch,) if request.command in WITH_EPOCH else ("0",) if request.each else ()
    digest = scripts.DIGEST[request.command]
    return ("EVALSHA", digest, len(keys), *keys, request.nonce, *arguments, *last)


def _said_of(error: ReplyError) -> Reason:
    """Return the reason in an error reply; of a right that is missing, in the node's words."""
    reason, found = complaint(error), MISSING.search(str(error))
    if found is None and reason.code is not ReasonCode.NO_PERMISSION:
        return reason
    text = found[0] if found else str(error)[:LONGEST]  # without the user's name
    return because(ReasonCode.RIGHTS_MISSING, text=text)


def _took(look: admission.Look) -> float:
    return look.heard - look.asked


def _pair(reply: object) -> tuple[str, str] | None:
    if not isinstance(reply, list) or [type(each) for each in reply] != [bytes, bytes]:
        return None
    name, value = (each.decode("utf-8", "replace") for each in reply)
    return name, value


# -- judge what it replied, beside what the settings expect. Pure: no I/O, no clock ---------------

OLDEST: Final = (6, 2)  # of Redis; Valkey tells the one it descends from
USUAL: Final = 10  # round trips that fit into NODE_TIMEOUT, at least
DATABASE: Final = re.compile(r"db\d+").fullmatch  # that has keys, in INFO
VERSION: Final = re.compile(r"(\d{1,5})\.(\d{1,5})")


def judge(address: Address, replies: Replies, expected: Expected) -> NodeReport:
    """Make the report of a node; what only a comparison with others shows is added later."""
    facts, info = replies.facts, replies.info
    report = NodeReport(
        address.label,
        heard=replies.refusal is None,
        voting=False,
        guard_left=replies.guard_left if expected.guard else 0.0,
        round_trip=replies.round_trip,
        clock_ahead=replies.ahead,
        append_only=None if "aof_enabled" not in info else info["aof_enabled"] == "1",
        snapshots=_snapshots(replies),
        rights=_rights(replies),
        **_memory(info),
    )
    if facts is not None:
        report = replace(
            report,
            software=facts.software,
            role=facts.role,
            uptime=facts.uptime,
            clock_off=facts.off,
            run_id=facts.run_id,
        )
    return report.found(*_findings(address, replies, expected, report))


def _rights(replies: Replies) -> bool | None:
    if not replies.tried:
        return None
    return all(each.code is not ReasonCode.RIGHTS_MISSING for each in replies.complaints)


def _memory(info: Mapping[str, str]) -> dict[str, Any]:
    try:
        return {
            "maxmemory_policy": info["maxmemory_policy"],
            "maxmemory": int(info["maxmemory"]),
            "evicted_keys": int(info.get("evicted_keys", "0")),
        }
    except (KeyError, ValueError):
        return {}


def _snapshots(replies: Replies) -> bool | None:
    if "save" in replies.config:
        return bool(replies.config["save"].strip())
    taken = replies.info.get("rdb_last_bgsave_time_sec", "-1") not in {"-1", "0"}
    return True if taken else None


def _findings(
    address: Address, replies: Replies, expected: Expected, report: NodeReport
) -> Iterator[Finding]:
    if replies.refusal is not None:
        yield Finding(Level.ERROR, replies.refusal)
        return
    for reason in replies.complaints:
        yield Finding(Level.ERROR, reason)
    yield from _of_round_trip(replies.round_trip, expected.timeout)
    if replies.facts is not None:
        yield from _of_server(replies.facts, replies, expected)
    if report.warning:
        yield Finding(Level.WARNING, report.warning)
    if replies.info:
        yield from _of_persistence(address, replies, expected, report)
        yield from _of_failover(replies, expected)
        if not (address.authenticates or address.is_local):
            yield Finding(Level.NOTE, because(ReasonCode.EVERYBODY))


def _of_round_trip(seconds: float | None, timeout: float) -> Iterator[Finding]:
    if seconds is None or seconds * USUAL <= timeout:
        return
    data: dict[str, float] = {
        "milliseconds": seconds * 1000,
        "timeout": timeout,
        "enough": math.ceil(200 * USUAL * seconds) / 100,
    }
    if seconds >= timeout:
        yield Finding(Level.ERROR, because(ReasonCode.TOO_SLOW, **data))
    else:
        yield Finding(Level.WARNING, because(ReasonCode.SLOW, **data))


def _of_server(
    facts: admission.ServerInfo, replies: Replies, expected: Expected
) -> Iterator[Finding]:
    """Yield what is said of the kind of server and of its age."""
    objection = expected.objection(facts)
    if objection:
        yield Finding(Level.ERROR, objection)
    version = VERSION.match(replies.info.get("redis_version", ""))
    if version and (int(version[1]), int(version[2])) < OLDEST:
        oldest = "Redis " + ".".join(map(str, OLDEST))
        reason = because(ReasonCode.OLD_SERVER, software=facts.software, oldest=oldest)
        yield Finding(Level.WARNING, reason)
    if not expected.guard:
        return
    if facts.off:
        yield Finding(Level.ERROR, admission.wrong_clock(facts.off, expected.skew))
    elif replies.guard_left == math.inf:
        yield Finding(Level.NOTE, because(ReasonCode.UNSEEN, seconds=expected.guard))
    elif replies.guard_left:
        guarded = admission.guarded(replies.guard_left, expected.only_node_of)
        yield Finding(Level.NOTE, guarded)


def _of_failover(replies: Replies, expected: Expected) -> Iterator[Finding]:
    """Yield what is said of a server that has replicas, or was one.

    It would vote with the mark of its master: the only sign that it was promoted is gone.
    """
    seconds = replies.config.get("repl-backlog-ttl", "")
    has_replicas = replies.info.get("connected_slaves", "0") != "0"
    promoted = replies.facts is not None and replies.facts.promoted
    if (has_replicas or promoted) and seconds.isdecimal() and 0 < int(seconds) < expected.guard:
        reason = because(ReasonCode.FORGETS_PROMOTION, seconds=float(seconds), guard=expected.guard)
        yield Finding(Level.WARNING, reason)


def _of_persistence(
    address: Address, replies: Replies, expected: Expected, report: NodeReport
) -> Iterator[Finding]:
    cannot_save = because(ReasonCode.CANNOT_SAVE)
    written = {replies.info.get(f"{each}_status") for each in ("rdb_last_bgsave", "aof_last_write")}
    if "err" in written and cannot_save not in replies.complaints:
        yield Finding(Level.WARNING, cannot_save)
    keeps_all = report.append_only and replies.config.get("appendfsync") == "always"
    if not expected.guard and not keeps_all:
        level = Level.NOTE if expected.size == 1 else Level.WARNING
        yield Finding(level, because(ReasonCode.MAY_FORGET))
    if report.snapshots:
        ours = f"db{address.options.get('db') or 0}"
        others = [name for name in replies.info if DATABASE(name) and name != ours]
        yield Finding(
            Level.NOTE,
            because(ReasonCode.OTHER_DATA, text=", ".join(others))
            if others
            else because(ReasonCode.SNAPSHOTS),
        )


# -- all nodes of a deployment --------------------------------------------------------------------

PATIENCE: Final = 2.0  # seconds for which a command or a page waits until nodes are connected
MOST: Final = 10.0  # seconds for each step of a conversation, however large NODE_TIMEOUT is
STEPS: Final = 3  # times that, for all: connecting, TLS, and silence
SUMMARIES: Final = {
    Health.OK: ReasonCode.READY,
    Health.DEGRADED: ReasonCode.TO_DO,
    Health.NO_MAJORITY: ReasonCode.NOT_READY,
}


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found of an alias.

    Attributes:
        alias: its name.
        size, majority: how many nodes there are, and how many must vote.
        guard: seconds of the restart guard.
        nodes: the nodes, in the order of the settings; empty if they are in memory.
        findings: about all of them together.
    """

    alias: str
    size: int
    majority: int
    guard: float
    nodes: tuple[NodeReport, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def usable(self) -> int:
        """How many nodes can vote, now or when the restart guard is over."""
        return self.size - sum(node.level is Level.ERROR for node in self.nodes)

    @property
    def voting(self) -> int:
        """How many nodes vote now; nodes in memory do."""
        return self.size - sum(not node.voting for node in self.nodes)

    @property
    def votes_in(self) -> float | None:
        """Seconds until a majority votes by itself, 0: it does; infinite: nobody counts them yet.

        None: it never will.
        """
        if self.voting >= self.majority:
            return 0.0
        left = sorted(
            0.0 if node.voting else node.guard_left or 0.0
            for node in self.nodes
            if node.level is not Level.ERROR
        )
        return left[self.majority - 1] if len(left) >= self.majority else None

    @property
    def health(self) -> Health:
        """Whether locks can be taken, and whether something is to be done."""
        if self.usable < self.majority:
            return Health.NO_MAJORITY
        if self.voting < self.majority:
            return Health.NOT_YET
        levels = {each.level for each in self.findings} | {node.level for node in self.nodes}
        return Health.DEGRADED if levels & {Level.WARNING, Level.ERROR} else Health.OK

    @property
    def summary(self) -> Reason:
        """The health as a reason, with the nodes that vote."""
        votes: dict[str, int] = {"votes": self.voting, "size": self.size, "needed": self.majority}
        if self.health is not Health.NOT_YET:
            return because(SUMMARIES[self.health], **votes)
        left = self.votes_in
        if left is None or left == math.inf:
            return because(ReasonCode.NOT_COUNTED, **votes, seconds=self.guard)
        return because(ReasonCode.NOT_YET, **votes, seconds=left)


def examine(aliases: Sequence[Expected]) -> list[Examination]:
    """Examine the nodes of these aliases, all at once, each in a thread.

    It takes at most three times NODE_TIMEOUT, which counts as at least 2 s and at most 10 s here. A
    socket has its timeout, and looking a name up has none: so nobody waits for a thread that is
    late. It ends by itself, or with the process.
    """
    patience = min(MOST, max([PATIENCE, *(each.timeout for each in aliases)]))
    until = time.monotonic() + STEPS * patience
    found = [[judge(each, LATE, alias) for each in alias.addresses] for alias in aliases]

    def ask(reports: list[NodeReport], alias: Expected, i: int) -> None:
        reports[i] = probe(alias.addresses[i], alias, patience)

    threads, count = WorkerThreads(), sum(map(len, found))
    for reports, alias in zip(found, aliases, strict=True):
        for i in range(len(reports)):
            threads.do("ask", partial(ask, reports, alias, i), most=count)
    end([threads], until - time.monotonic())
    return [compare(alias, list(nodes)) for alias, nodes in zip(aliases, found, strict=True)]


def compare(expected: Expected, nodes: Sequence[NodeReport]) -> Examination:
    """Add what only a comparison shows: which two addresses are those of one server."""
    first: dict[str, str] = {}  # by run_id, as far as a connection for locks would come
    compared = []
    for node in nodes:
        report = node
        if node.run_id in first:
            report = node.found(Finding(Level.ERROR, admission.duplicated(first[node.run_id])))
        elif node.run_id and node.level is not Level.ERROR:
            first[node.run_id] = node.label
        compared.append(report)
    in_memory = [Finding(Level.WARNING, because(ReasonCode.IN_MEMORY))] if not nodes else []
    return Examination(
        expected.alias,
        expected.size,
        expected.majority,
        expected.guard,
        tuple(compared),
        tuple(in_memory),
    )
