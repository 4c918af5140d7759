"""Why a node gave no vote, or why there is no lock: codes with data, and their sentences.

Votes and errors carry the codes, which are stable: programs may compare them. Pages, logs and the
commands show the sentences, which are for people, are English and may change.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final, NamedTuple, Self, TypeAlias

DOCS: Final = "https://django-redlock.readthedocs.io/en/latest/"
RIGHTS: Final = f"{DOCS}reference/settings.html#an-acl-user-for-the-nodes"
CHECKS: Final = f"{DOCS}reference/checks.html#"  # and the number of a system check
SERVERS: Final = (
    "name the servers that hold the locks in NODES, as in redis://10.0.0.1:6379/0: independent "
    "masters, no replicas"
)
# What to do about a node.
CORRECT: Final = "start the server, or correct its entry in NODES"
ELSEWHERE: Final = "correct host and port in NODES"
INDEPENDENT: Final = "put an independent master in its place"
# Perhaps nothing runs there. With another reason a server does, and to start it is no help.
SILENT: Final = 1
# Something is wrong with the settings or the server, and one reply does not show all of it.
SET_UP: Final = 2


class ReasonCode(enum.StrEnum):
    """The table of reasons: code, sentence, what to do, what kind it is, the sentence in short.

    The comments are the headings of the page "Reasons".

    ``describe`` fills in the data. The action is "" where the sentence says what to do. The short
    sentence lacks the data that a table shows beside it; "" where it is no shorter.
    """

    _value_: str
    sentence: str
    action: str
    kind: int
    brief: str

    def __new__(
        cls, code: str, sentence: str = "", action: str = "", kind: int = 0, brief: str = ""
    ) -> Self:
        """Make a member of a row."""
        self = str.__new__(cls, code)
        self._value_ = code
        self.sentence, self.action, self.kind, self.brief = sentence, action, kind, brief
        return self

    # fmt: off
    # A node cannot be reached.
    DOWN = ("down", "down", "", SILENT)
    CONNECTION_REFUSED = ("connection_refused", "connection refused", CORRECT, SILENT)
    NO_SUCH_SOCKET = ("no_such_socket", "no such socket", CORRECT, SILENT)
    NO_SUCH_HOST = ("no_such_host", "no such host",
        "correct its host in NODES, or repair the name service", SILENT)
    NO_ROUTE = ("no_route", "no route to host", "repair the network, or correct its host in NODES",
        SILENT)
    CONNECT_TIMEOUT = ("connect_timeout", "no answer while connecting",
        "look whether the server hangs, or a firewall drops packets", SILENT | SET_UP)
    CONNECT_FAILED = ("connect_failed", "{text}", "correct its entry in NODES", SILENT | SET_UP)
    CONNECT_RAISED = ("connect_raised",
        "connecting raised {text}; look through OPTIONS, and the URL's query", "", SILENT | SET_UP)
    CONNECTING = ("connecting", "no connection within {seconds:g} s", "", SILENT | SET_UP)
    NO_THREAD = ("no_thread", "no thread can be started to connect to it", "raise the limit of "
        "threads of this process (ulimit -u, or pids of its container)", SILENT | SET_UP)
    NEVER_REACHED = ("never_reached", "never reached", "", SILENT)
    CONNECTION_LOST = ("connection_lost", "connection lost: {text}", CORRECT, SILENT)
    CONNECTION_CLOSED = ("connection_closed", "connection closed by the node", CORRECT, SILENT)
    # Something else is there.
    NOT_TLS = ("not_tls", "does not speak TLS; begin its URL with redis://, or name its TLS port",
        "", SET_UP)
    PERHAPS_NOT_TLS = ("perhaps_not_tls", "does not answer in TLS; if that port has none, begin "
        "its URL with redis://; if it wants a certificate of ours, name one in "
        "OPTIONS['ssl_certfile']", "", SET_UP)
    TLS = ("tls", "speaks TLS; begin its URL with rediss://, or name its port without TLS", "",
        SET_UP)
    PERHAPS_TLS = ("perhaps_tls", "closed the connection before it answered; if that port "
        "expects TLS, begin its URL with rediss://", "", SET_UP)
    UNTRUSTED = ("untrusted",
        "nobody vouches for its certificate ({text}); name its CA in OPTIONS['ssl_ca_certs']", "",
        SET_UP)
    OTHER_HOST = ("other_host", "its certificate is for another host ({text}); name that one in "
        "NODES, or give it a certificate for this one", "", SET_UP)
    EXPIRED = ("expired",
        "its certificate is not valid today ({text}); renew it, or set this machine's clock", "",
        SET_UP)
    CERTIFICATE_NEEDED = ("certificate_needed", "wants a certificate of ours; name one in "
        "OPTIONS['ssl_certfile'] and OPTIONS['ssl_keyfile']", "", SET_UP)
    WEB_SERVER = ("web_server",
        "is a web server, not Redis or Valkey; correct host and port in NODES", "", SET_UP)
    NOT_A_NODE = ("not_a_node",
        "answers, but not as Redis or Valkey; correct host and port in NODES", "", SET_UP)
    SENTINEL = ("sentinel", f"is a Sentinel, which holds no locks; {SERVERS}", "", SET_UP)
    PERHAPS_SENTINEL = ("perhaps_sentinel",
        f"has no command SELECT, so it is probably a Sentinel; {SERVERS}", "", SET_UP)
    STRANGE_INFO = ("strange_info", "its INFO is not that of a Redis or Valkey server", ELSEWHERE,
        SET_UP)
    STRANGE_TIME = ("strange_time", "its TIME is not that of a Redis or Valkey server", ELSEWHERE,
        SET_UP)
    NO_SUCH_DATABASE = ("no_such_database", "has no database of that number; correct it in NODES",
        "", SET_UP)
    UNSENDABLE = ("unsendable",
        "its host, USERNAME or PASSWORD has characters that cannot be sent", "", SET_UP)
    LOGIN_REFUSED = ("login_refused", "refuses the username or password; correct USERNAME and "
        "PASSWORD in NODES, or what the credential_provider in OPTIONS gives", "", SET_UP)
    NO_PASSWORD_THERE = ("no_password_there",
        "has no password for that user; set one there, or remove PASSWORD from NODES", "", SET_UP)
    PASSWORD_NEEDED = ("password_needed",
        "NOAUTH: asks for a password; set PASSWORD for it in NODES", "", SET_UP)
    # A node may not vote.
    RESTART_GUARD = ("restart_guard",
        "restart guard: new here, or started, emptied or promoted a short while ago, "
        "{seconds:.1f} s left",
        "wait, it votes by itself when they are over", 0, "restart guard")
    EMPTIED = ("emptied", "lost its data; votes again when the restart guard is "
        "over, or at once if RESTART_GUARD is False")
    CLOCK = ("clock", "clocks differ by {seconds:.1f} s, its own and this machine's: let NTP set "
        "the wrong one (CLOCK_SKEW allows {skew:g} s)", "", 0, "clocks differ by {seconds:.1f} s")
    CLUSTER = ("cluster", "is a cluster node; Redlock needs independent masters", INDEPENDENT,
        SET_UP)
    REPLICA = ("replica", "is a replica; Redlock needs independent masters", INDEPENDENT, SET_UP)
    PROMOTED = ("promoted", "is a promoted replica and may lack what its master had granted",
        f"{INDEPENDENT}, or delete its dump.rdb and restart it", SET_UP)
    DUPLICATE = ("duplicate", "is the same server as {first}; list every node once", "", SET_UP)
    # A node replies with an error.
    WRONG_TYPE = ("wrong_type", "WRONGTYPE: a key under KEY_PREFIX (the lock's own, fences or "
        "held) is somebody else's; delete or rename it", "", SET_UP)
    OUT_OF_MEMORY = ("out_of_memory", "OOM: out of memory; raise its maxmemory")
    LOADING = ("loading", "LOADING: still loading its data", "look again when it has loaded them")
    BUSY = ("busy", "BUSY: running somebody's endless script (SCRIPT KILL ends it)")
    READ_ONLY = ("read_only", "READONLY: is a replica", INDEPENDENT)
    CANNOT_SAVE = ("cannot_save", "MISCONF: cannot save to disk and refuses writes",
        "make room on its disk")
    TOO_FEW_REPLICAS = ("too_few_replicas", "NOREPLICAS: has too few replicas and refuses writes",
        "set min-replicas-to-write 0")
    NO_PERMISSION = ("no_permission",
        f"NOPERM: the user lacks a right; see the ACL line in {RIGHTS}", "", SET_UP)
    TOO_MANY_CLIENTS = ("too_many_clients", "has as many clients as it allows",
        "raise its maxclients, or end clients")
    ERROR = ("error", "answered with an error: {text}", "look into its log", SET_UP)
    UNREADABLE_ERROR = ("unreadable_error", "answered with an error that is no text",
        "look into its log", SET_UP)
    # A reply is missing or makes no sense.
    NO_ANSWER = ("no_answer", "no answer for {seconds:.2f} s", "", SILENT, "no answer")
    NOT_WAITED_FOR = ("not_waited_for", "not waited for", "", SILENT)
    BACKLOG = ("backlog", "has too much to answer already")
    GRANT_UNANSWERED = ("grant_unanswered", "it has not answered the grant yet")
    GONE = ("gone", "the key is missing or somebody else's")
    NOT_THE_PROTOCOL = ("not_the_protocol", "sent what is not the Redis protocol", ELSEWHERE,
        SET_UP)
    TOO_LONG = ("too_long", "sent an answer that is too long", ELSEWHERE)
    UNASKED = ("unasked", "sent an answer to nothing", ELSEWHERE)
    OUT_OF_STEP = ("out_of_step", "answered another question", ELSEWHERE)
    SENSELESS = ("senseless", "sent an answer that makes no sense", ELSEWHERE)
    # This process ended the connection.
    CLOSED = ("closed", "closed")
    INTERRUPTED = ("interrupted", "interrupted")
    TAKES_NO_MORE = ("takes_no_more", "takes no more data")
    SURPLUS = ("surplus", "more connections than needed")
    GUARD_OVER = ("guard_over", "the restart guard is over: look again")
    LEFT_QUEUE = ("left_queue", "left the queue")
    LOOP_ENDS = ("loop_ends", "the event loop ends")
    EXITING = ("exiting", "the interpreter shuts down")
    # An attempt failed.
    HELD = ("held", "held by {holder} on {nodes} of {size} nodes")
    FULL = ("full", "all {limit} slots are held, one of them by {holder}")
    RECORDED = ("recorded", "its work is recorded as done")
    NO_MAJORITY = ("no_majority", "{votes} of {size} nodes could vote, {needed} are needed")
    GRANTED_TOO_LATE = ("granted_too_late", "a majority granted it, but too late for its ttl")
    FENCE_UNKNOWN = ("fence_unknown", "a majority granted it and then did not answer")
    ADOPTED_BY_SEVERAL = ("adopted_by_several", "several adopt it at the same time; the handle "
        "can still be adopted, until its ttl is over")
    ALREADY_QUEUED = ("already_queued", "the task {task_id} for the same key waits or runs already")
    STILL_ADOPTABLE = ("still_adoptable",
        "{cause}; the handle can still be adopted, until its ttl is over")
    # A lease was not extended, or is over.
    NOT_EXTENDED = ("not_extended", "{votes} of {size} nodes answered; held until its deadline")
    NOT_ASKED = ("not_asked", "the nodes could not be asked")
    PROLONGED_ELSEWHERE = ("prolonged_elsewhere",
        "too late; the watchdog has prolonged it, and it is held until its deadline")
    TOO_LATE_TO_ADOPT = ("too_late_to_adopt",
        "too late to adopt: the lease is over, or another process has it")
    OVER_BEFORE_ASKED = ("over_before_asked", "over before it could be extended")
    OVER_BEFORE_EXTENDED = ("over_before_extended", "over before a majority extended it")
    REVOKED = ("revoked", "it was revoked ({text})")
    DENIED = ("denied", "a majority does not have it any more")
    RAN_OUT = ("ran_out", "its time ran out")
    NEVER_RELEASED = ("never_released",
        "what was to release it was interrupted or dropped, so its time ran out")
    TIME_OVER = ("time_over", "its time is over")
    LOST = ("lost", "the lease was lost")
    LOST_IN_BLOCK = ("lost_in_block", "the lease was lost before the block ended")
    RELEASED = ("released", "the lease was released")
    GIVEN_AWAY = ("given_away", "the lease was given away")
    PARENTS = ("parents", "the lease belongs to the parent process")
    NEVER_TAKEN = ("never_taken", "this code runs without the lock that it needs")
    STALE_FENCE = ("stale_fence",
        "a later holder has claimed {rows}, or it is gone; this holder's fence is {fence}")
    # What a survey says.
    HEALTHY = ("healthy", "healthy ({votes} of {size} nodes vote, {needed} are needed)")
    DEGRADED = ("degraded", "degraded ({votes} of {size} nodes vote, {needed} are needed)")
    NO_LOCK = ("no_lock",
        "no majority, no lock can be taken ({votes} of {size} nodes vote, {needed} are needed)")
    ADVICE_GUARD = ("advice_guard",
        "restart guard: new here, or started, emptied or promoted a short while ago; votes by "
        "itself when its seconds are over")
    ADVICE_CLOCK = ("advice_clock",
        "clock: let NTP set the wrong one, the node's or this machine's")
    ADVICE_DOWN = ("advice_down",
        "down: start the server, or correct its entry in REDLOCK[{alias!r}]['NODES']")
    ADVICE_NODE = ("advice_node", "{cause}; {action}")
    EVICTS = ("evicts", "{policy}: with this maxmemory-policy a full node deletes locks that are "
        "held (keys deleted since its start: {evicted}); set noeviction, or, if it is a cache, "
        "name another server in NODES", "", 0, "{policy}")
    # What an examination says.
    READY = ("ready", "ready ({votes} of {size} nodes vote, {needed} are needed)")
    TO_DO = ("to_do", "locks work, and something is to be done ({votes} of {size} nodes vote, "
        "{needed} are needed)")
    NOT_READY = ("not_ready", "too few nodes can vote, no lock can be taken ({votes} of {size} "
        "nodes vote, {needed} are needed)")
    NOT_YET = ("not_yet", "not yet, no lock can be taken for {seconds:.0f} s more ({votes} of "
        "{size} nodes vote, {needed} are needed)")
    NOT_COUNTED = ("not_counted", "not yet, no lock can be taken until {seconds:g} s after "
        "redlock_status has seen the new nodes ({votes} of {size} nodes vote, {needed} are "
        "needed)")
    UNSEEN = ("unseen", "is new or was emptied, and votes {seconds:g} s after a process has "
        "first seen it; run redlock_status to begin the count")
    IN_MEMORY = ("in_memory", "the nodes are memory:// nodes, of which every process has its "
        "own; name servers that all processes share")
    OLD_SERVER = ("old_server",
        "runs {software}; upgrade it: {oldest} is the oldest that is tested")
    SLOW = ("slow", "a round trip takes {milliseconds:.1f} ms, more than a tenth of NODE_TIMEOUT "
        "({timeout:g} s); raise NODE_TIMEOUT to {enough:g} or more, or bring the node nearer")
    TOO_SLOW = ("too_slow", "a round trip takes {milliseconds:.1f} ms, more than NODE_TIMEOUT "
        "({timeout:g} s), so its replies come too late; raise NODE_TIMEOUT to {enough:g} or more")
    RIGHTS_MISSING = ("rights_missing", "NOPERM: {text}; give the user the rights and the keys of "
        f"the ACL line in {RIGHTS}")
    EVERYBODY = ("everybody", "asks for no password, so anybody who reaches it can take and "
        "delete locks; set an ACL user, or let nobody else reach it")
    MAY_FORGET = ("may_forget", "forgets locks that are held when it restarts, and RESTART_GUARD "
        "is False; unless your work may run twice now and then, remove RESTART_GUARD, or set "
        "appendonly yes and appendfsync always")
    SNAPSHOTS = ("snapshots", "takes snapshots, which no lock needs: a failed one stops writes; if "
        'it holds nothing but locks, set save ""')
    OTHER_DATA = ("other_data", "takes snapshots, which no lock needs, and holds other data "
        "({text}): leave its persistence as it is")
    FORGETS_PROMOTION = ("forgets_promotion", "forgets that it was promoted when it has had no "
        "replica for {seconds:g} s, before the restart guard of {guard:g} s is over; set "
        "repl-backlog-ttl 0")
    # fmt: on


# What a reason adds, if this belongs to it.
MORE: Final = {
    "only_node_of": " (if this single node's locks only save work, set 'RESTART_GUARD': False in "
    "REDLOCK[{only_node_of!r}])",
    "single_node_of": " (if this single node is a service with failover, set 'FAILOVER': True in "
    "REDLOCK[{single_node_of!r}])",
    "in_slot": "; it holds slot {in_slot:.0f} of the lock with a limit, which is another lock: "
    "take one without a limit around this code",
    "reentered": "; this process holds {reentered!r} already, and a lock is not re-entrant: take "
    "it once, around all that needs it, and check it inside by assert_locked({reentered!r})",
}
# What is said of a single node in place of numbers of nodes: without its vote, and with it.
ALONE: Final = {
    "{votes} of {size} nodes vote, {needed} are needed": (
        "its node does not vote",
        "its node votes",
    ),
    "{votes} of {size} nodes could vote, {needed} are needed": ("its node could not vote", ""),
    "{votes} of {size} nodes answered": ("its node did not answer", ""),
    " on {nodes} of {size} nodes": ("", ""),
    "no majority, ": ("", ""),
    "too few nodes can vote, ": ("", ""),
}
IF_EMPTY: Final = {"holder": "somebody", "text": "no text"}

Datum: TypeAlias = "str | float | Reason"


class Reason(NamedTuple):
    """A code with its data; ``str`` makes the sentence.

    Attributes:
        code: which reason.
        items: its data, by name.
    """

    code: ReasonCode
    items: tuple[tuple[str, Datum], ...] = ()

    def __str__(self) -> str:
        return describe(self)

    @property
    def data(self) -> dict[str, Datum]:
        """Return its data, by name, as in its sentence."""
        return dict(self.items)


LOOK_FURTHER: Final = "run manage.py redlock_check to see what each node needs"


def because(code: ReasonCode, **data: Datum) -> Reason:
    """Make a reason with its data; quick, for it may be made for every vote."""
    return Reason(code, tuple(data.items()))


def code_of(reason: Reason | str | None) -> str:
    """Return the code, for programs; "" without a reason, or of a mere sentence."""
    return reason.code.value if isinstance(reason, Reason) else ""


def describe(reason: Reason | str | None, *, brief: bool = False) -> str:
    """Make the sentence of a reason; all sentences are made here.

    Args:
        reason: None or "" is no sentence. A text is itself: errors may be made of such.
        brief: without the data that a table shows beside it.
    """
    if not isinstance(reason, Reason):
        return reason or ""
    data = {name: _shown(name, datum) for name, datum in reason.items}
    if brief and reason.code.brief:
        sentence = reason.code.brief
    else:
        sentence = reason.code.sentence + "".join(MORE[name] for name in MORE.keys() & data)
    if data.get("size") == 1:
        for numbers, said in ALONE.items():
            sentence = sentence.replace(numbers, said[bool(data.get("votes"))])
    return sentence.format_map(data) if data else sentence


def action(reason: Reason) -> str:
    """Return what to do about a node with this reason; "" where its sentence says it."""
    return reason.code.action


def is_silent(reason: Reason | str | None) -> bool:
    """Tell whether perhaps no server runs at the address of a node with this reason."""
    return not isinstance(reason, Reason) or bool(reason.code.kind & SILENT)


def is_of_set_up(reason: Reason | str | None) -> bool:
    """Tell whether the settings or the server have to be corrected before this node can vote."""
    return isinstance(reason, Reason) and bool(reason.code.kind & SET_UP)


def _shown(name: str, datum: Datum) -> object:
    if isinstance(datum, str):
        return printable(datum) or IF_EMPTY.get(name, "")
    return datum


def by_node(said: Iterable[tuple[str, Reason | str]], of: int) -> list[str]:
    """Make a sentence of each reason of several nodes, with the nodes that have it.

    Reasons that differ only in their seconds are one, told with the most of these.

    Args:
        said: nodes and their reasons.
        of: how many nodes there are.
    """
    groups: dict[object, tuple[Reason | str, list[str]]] = {}
    for node, reason in said:
        alike = _without_seconds(reason)
        most, nodes = groups.setdefault(alike, (reason, []))
        groups[alike] = max(most, reason, key=_seconds), [*nodes, printable(node)]
    return [
        f"{len(nodes)} of {of} nodes: {reason} ({', '.join(nodes)})"
        if len(nodes) > 1
        else f"{nodes[0]}: {reason}"
        for reason, nodes in groups.values()
    ]


def _without_seconds(reason: Reason | str) -> object:
    if not isinstance(reason, Reason):
        return reason
    return reason.code, *(item for item in reason.items if item[0] != "seconds")


def _seconds(reason: Reason | str) -> float:
    seconds = reason.data.get("seconds") if isinstance(reason, Reason) else None
    return seconds if isinstance(seconds, int | float) else 0.0


def printable(text: str) -> str:
    """Return ``text`` for people: escape what is invisible, ends a row or turns the writing."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
