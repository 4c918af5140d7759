"""One node, seen by a person: what it says of itself, and what is wrong or risky with it.

``NodeReport`` is the record of a node for every face. ``survey`` fills it by the connections that
locks use. ``probe`` fills it by a connection of its own, for ``redlock_check``: it asks what no
lock needs to know, and of nodes too that locks cannot use.

A probe writes nothing to the node but an entry of a wait queue that nobody uses, deleted at once.
"""

from __future__ import annotations

import enum
import math
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from hiredis import ReplyError
from redis.connection import Connection as RedisConnection
from redis.connection import UnixDomainSocketConnection

from django_redlock.core.policy import boottime, microseconds
from django_redlock.core.protocol import Command
from django_redlock.core.reasons import Reason, ReasonCode, because, code_of, describe
from django_redlock.nodes import admission
from django_redlock.nodes.address import Address
from django_redlock.nodes.faults import Refused, complaint, why_unreached
from django_redlock.nodes.handshake import Admission, NodeReplies, log_in, send
from django_redlock.nodes.replies import ANOTHER
from django_redlock.nodes.scripts import TEXT

# -- the record -----------------------------------------------------------------------------------


class NodeState(enum.StrEnum):
    """Whether a node votes."""

    UP = "up"
    NO_VOTE = "no vote"  # it replies, but may not vote
    DOWN = "down"


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
        return eviction([self])

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
        denied: commands that the user may not run.
        keys_denied: whether the user may not use keys under the prefix.
        complaints: what else was wrong with the commands, such as a key of somebody else's.
    """

    refusal: Reason | None = None
    facts: admission.ServerInfo | None = None
    round_trip: float | None = None
    ahead: float | None = None
    guard_left: float | None = None
    info: Mapping[str, str] = {}
    config: Mapping[str, str] = {}
    denied: tuple[str, ...] = ()
    keys_denied: bool = False
    complaints: tuple[Reason, ...] = ()


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
        replies = _Conversation(connection, heard).replies(address, expected)
    except Exception as error:  # noqa: BLE001 - a provider of credentials may raise anything
        replies = Replies(refusal=why_unreached(error, tls=address.tls))
    finally:
        if connection is not None:
            connection.disconnect()
    return judge(address, replies, expected)


ROUND_TRIPS: Final = 5  # of which the quickest counts: this process may be busy
SECTIONS: Final = ("server", "replication", "memory", "stats", "persistence")  # of INFO
CONFIG: Final = ("save", "appendfsync", "repl-backlog-ttl")

# The commands that the user must be allowed, by their names in an ACL, in the order of the
# documentation. The scripts call most of them, with the rights of the user. Each is sent in a form
# that changes nothing: for a key that does not exist, or with arguments that the server refuses
# after it has looked at the rights.
KEY: Final = "{prefix}lock:{name}"
HELD: Final = "{prefix}held"
FENCES: Final = "{prefix}fences"
QUEUE: Final = "{prefix}queue:{name}"
TRIES: Final[dict[str, tuple[str, ...]]] = {
    "eval": ("EVAL", "return 1", "0"),
    "evalsha": ("EVALSHA", "0" * 40, "0"),
    "script|load": ("SCRIPT", "LOAD", TEXT[Command.LOOK]),
    "get": ("GET", KEY),
    "set": ("SET", KEY, "1", "XX", "PX", "1"),
    "del": ("DEL", KEY),
    "pexpire": ("PEXPIRE", KEY, "1"),
    "pttl": ("PTTL", KEY),
    "time": ("TIME",),
    "hget": ("HGET", FENCES, "0"),
    "hmget": ("HMGET", FENCES, "0"),
    "hset": ("HSET", KEY, "a", "1", "b"),  # a value is missing
    "zadd": ("ZADD", KEY, "XX", "0", "a"),
    "zrem": ("ZREM", KEY, "a"),
    "zscore": ("ZSCORE", HELD, "a"),
    "zrangebyscore": ("ZRANGEBYSCORE", HELD, "0", "0"),
    "zremrangebyscore": ("ZREMRANGEBYSCORE", KEY, "0", "0"),
    "zremrangebyrank": ("ZREMRANGEBYRANK", KEY, "0", "0"),
    "rpush": ("RPUSH", QUEUE, "1"),  # the one that writes: see UNDO
    "lpop": ("LPOP", QUEUE),
    "blpop": ("BLPOP", QUEUE, "0.01"),  # Redis 6.2 rounds 0.001 down to 0, which is for ever
    "info": ("INFO", "server"),
    "select": ("SELECT", "{db}"),
    "client|id": ("CLIENT", "ID"),
    "client|unblock": ("CLIENT", "UNBLOCK", "0"),
}
WRITES: Final = "rpush"
UNDO: Final = ("DEL", QUEUE)
# redis-py needs them for OPTIONS['client_name'], where logging in tells, and works without.
UNTRIED: Final = frozenset({"client|setname", "client|setinfo"})
NAMES: Final = frozenset({KEY, HELD, FENCES, QUEUE, "{db}"})


class _Conversation:
    """The questions to one node, and what came back."""

    def __init__(
        self, connection: RedisConnection | UnixDomainSocketConnection, heard: NodeReplies
    ) -> None:
        self._connection, self._heard = connection, heard
        self._denied: list[str] = []
        self._keys_denied = False
        self._complaints: list[Reason] = []

    def replies(self, address: Address, expected: Expected) -> Replies:
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
        if facts is not None:
            found = found._replace(facts=facts)
            if expected.guard and not (facts.off or expected.objection(facts)):
                found = found._replace(guard_left=self._guard_left(facts, expected))
        self._try_rights(expected.prefix, int(address.options.get("db") or 0))
        return found._replace(
            denied=tuple(self._denied),
            keys_denied=self._keys_denied,
            complaints=tuple(self._complaints),
        )

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

    def _guard_left(self, facts: admission.ServerInfo, expected: Expected) -> float | None:
        """Ask as a connection for locks does, but leave no mark."""
        age = admission.age(facts, boottime())
        question = Admission(f"{expected.prefix}fences", expected.guard, age, facts, epoch="")
        (reply,) = self._ask(None, question.command)
        if isinstance(reply, ReplyError):  # for which trying the rights finds the words
            return None
        return question.read(reply)[0]

    def _try_rights(self, prefix: str, db: int) -> None:
        """Try the commands that the scripts and connections need."""
        name = f"redlock_check-{secrets.token_hex(8)}"

        def filled(command: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(
                part.format(prefix=prefix, name=name, db=db) if part in NAMES else part
                for part in command
            )

        harmless = [each for each in TRIES if each != WRITES]
        replies = self._ask(None, *(filled(TRIES[each]) for each in harmless))
        for each, reply in zip(harmless, replies, strict=True):
            self._note(each, reply)
        if "del" not in self._denied and not self._keys_denied:
            reply, _ = self._ask(None, filled(TRIES[WRITES]), filled(UNDO))
            self._note(WRITES, reply)

    def _note(self, command: str, reply: object) -> None:
        """Note what the reply to a try says of the rights, if it is an error."""
        if not isinstance(reply, ReplyError):
            return
        reason, text = complaint(reply), str(reply)
        if reason.code is ReasonCode.ERROR:
            # Refused for its arguments, as was meant; or the server does not know it.
            if "unknown command" in text.lower():
                self._denied.append(command)
        elif reason.code is ReasonCode.READ_ONLY:
            pass  # a replica, as its INFO tells
        elif reason.code is not ReasonCode.NO_PERMISSION:
            if reason not in self._complaints:
                self._complaints.append(reason)
        elif " key" in text and "access" in text:
            self._keys_denied = True
        else:
            self._denied.append(command)

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


def _took(look: admission.Look) -> float:
    return look.heard - look.asked


def _pair(reply: object) -> tuple[str, str] | None:
    """Read the reply to CONFIG GET of one name."""
    if not isinstance(reply, list) or [type(each) for each in reply] != [bytes, bytes]:
        return None
    name, value = (each.decode("utf-8", "replace") for each in reply)
    return name, value


# -- judge what it replied, beside what the settings expect. Pure: no I/O, no clock ---------------

OLDEST: Final = (6, 2)  # of Redis; Valkey tells the one it descends from
USUAL: Final = 10  # round trips that fit into NODE_TIMEOUT, at least
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
        rights=None if replies.refusal else not (replies.denied or replies.keys_denied),
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
    """Return whether it takes snapshots; of one that does not tell, by whether it has."""
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
    if replies.denied:
        commands = ", ".join(replies.denied)
        yield Finding(Level.ERROR, because(ReasonCode.RIGHTS_MISSING, commands=commands))
    if replies.keys_denied:
        yield Finding(Level.ERROR, because(ReasonCode.KEYS_DENIED, prefix=expected.prefix))
    for reason in replies.complaints:
        yield Finding(Level.ERROR, reason)
    yield from _of_round_trip(replies.round_trip, expected.timeout)
    if replies.facts is not None:
        yield from _of_server(replies.facts, replies, expected)
    if report.warning:
        yield Finding(Level.WARNING, report.warning)
    if replies.info:
        yield from _of_persistence(replies, expected, report)
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
    told = replies.config.get("repl-backlog-ttl", "")
    has_replicas = replies.info.get("connected_slaves", "0") != "0"
    promoted = replies.facts is not None and replies.facts.promoted
    if (has_replicas or promoted) and told.isdecimal() and 0 < int(told) < expected.guard:
        reason = because(ReasonCode.FORGETS_PROMOTION, seconds=float(told), guard=expected.guard)
        yield Finding(Level.WARNING, reason)


def _of_persistence(replies: Replies, expected: Expected, report: NodeReport) -> Iterator[Finding]:
    cannot_save = because(ReasonCode.CANNOT_SAVE)
    written = {replies.info.get(f"{each}_status") for each in ("rdb_last_bgsave", "aof_last_write")}
    if "err" in written and cannot_save not in replies.complaints:
        yield Finding(Level.WARNING, cannot_save)
    keeps_all = report.append_only and replies.config.get("appendfsync") == "always"
    if not expected.guard and not keeps_all:
        level = Level.NOTE if expected.size == 1 else Level.WARNING
        yield Finding(level, because(ReasonCode.MAY_FORGET))
    if report.snapshots:
        yield Finding(Level.NOTE, because(ReasonCode.SNAPSHOTS))
