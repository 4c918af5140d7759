"""The sentence of each code; ``describe`` fills it in.

Sentences are for people and may change. A translation replaces this table only.
"""

from __future__ import annotations

from typing import Final

from .codes import ReasonCode

DOCS: Final = "https://django-redlock.readthedocs.io/en/latest/"
RIGHTS: Final = f"{DOCS}reference/settings.html#an-acl-user-for-the-nodes"
CHECKS: Final = f"{DOCS}reference/settings.html#"  # and the number of a system check
SERVERS: Final = (
    "name the servers that hold the locks in NODES, as in redis://10.0.0.1:6379/0: independent "
    "masters, no replicas"
)

SENTENCES: Final = {
    ReasonCode.DOWN: "down",
    ReasonCode.CONNECTION_REFUSED: "connection refused",
    ReasonCode.NO_SUCH_SOCKET: "no such socket",
    ReasonCode.NO_SUCH_HOST: "no such host",
    ReasonCode.NO_ROUTE: "no route to host",
    ReasonCode.CONNECT_TIMEOUT: "no answer while connecting",
    ReasonCode.CONNECT_FAILED: "{text}",
    ReasonCode.CONNECT_RAISED: "connecting raised {text}; look through OPTIONS, and the URL's "
    "query",
    ReasonCode.CONNECTING: "no connection within {seconds:g} s",
    ReasonCode.NEVER_REACHED: "never reached",
    ReasonCode.CONNECTION_LOST: "connection lost: {text}",
    ReasonCode.CONNECTION_CLOSED: "connection closed by the node",
    ReasonCode.NOT_TLS: "does not speak TLS; begin its URL with redis://, or name its TLS port",
    ReasonCode.PERHAPS_NOT_TLS: "does not answer in TLS; if that port has none, begin its URL with "
    "redis://; if it wants a certificate of ours, name one in OPTIONS['ssl_certfile']",
    ReasonCode.TLS: "speaks TLS; begin its URL with rediss://, or name its port without TLS",
    ReasonCode.PERHAPS_TLS: "closed the connection before it answered; if that port expects TLS, "
    "begin its URL with rediss://",
    ReasonCode.UNTRUSTED: "nobody vouches for its certificate ({text}); name its CA in "
    "OPTIONS['ssl_ca_certs']",
    ReasonCode.OTHER_HOST: "its certificate is for another host ({text}); name that one in NODES, "
    "or give it a certificate for this one",
    ReasonCode.EXPIRED: "its certificate is not valid today ({text}); renew it, or set this "
    "machine's clock",
    ReasonCode.CERTIFICATE_NEEDED: "wants a certificate of ours; name one in "
    "OPTIONS['ssl_certfile'] and OPTIONS['ssl_keyfile']",
    ReasonCode.WEB_SERVER: "is a web server, not Redis or Valkey; correct host and port in NODES",
    ReasonCode.NOT_A_NODE: "answers, but not as Redis or Valkey; correct host and port in NODES",
    ReasonCode.SENTINEL: f"is a Sentinel, which holds no locks; {SERVERS}",
    ReasonCode.PERHAPS_SENTINEL: f"has no command SELECT, so it is probably a Sentinel; {SERVERS}",
    ReasonCode.STRANGE_INFO: "its INFO is not that of a Redis or Valkey server",
    ReasonCode.STRANGE_TIME: "its TIME is not that of a Redis or Valkey server",
    ReasonCode.NO_SUCH_DATABASE: "has no database of that number; correct it in NODES",
    ReasonCode.UNSENDABLE: "its host, USERNAME or PASSWORD has characters that cannot be sent",
    ReasonCode.LOGIN_REFUSED: "refuses the username or password; correct USERNAME and PASSWORD in "
    "NODES, or what the credential_provider in OPTIONS gives",
    ReasonCode.NO_PASSWORD_THERE: "has no password for that user; set one there, or remove "
    "PASSWORD from NODES",
    ReasonCode.PASSWORD_NEEDED: "NOAUTH: asks for a password; set PASSWORD for it in NODES",
    ReasonCode.RESTART_GUARD: "restart guard: started or emptied a short while ago, {seconds:.1f} "
    "s left",
    ReasonCode.EMPTIED: "lost its data; the restart guard counts from now",
    ReasonCode.CLOCK_AHEAD: "its clock is {seconds:.1f} s ahead of this machine's: let NTP set the "
    "wrong one (CLOCK_SKEW allows {skew:g} s)",
    ReasonCode.CLOCK_BEHIND: "its clock is {seconds:.1f} s behind this machine's: let NTP set the "
    "wrong one (CLOCK_SKEW allows {skew:g} s)",
    ReasonCode.OUR_CLOCK_AHEAD: "this machine's clock is {seconds:.1f} s ahead of most nodes' "
    "clocks: let NTP set it",
    ReasonCode.OUR_CLOCK_BEHIND: "this machine's clock is {seconds:.1f} s behind most nodes' "
    "clocks: let NTP set it",
    ReasonCode.CLUSTER: "is a cluster node; Redlock needs independent masters",
    ReasonCode.REPLICA: "is a replica; Redlock needs independent masters",
    ReasonCode.PROMOTED: "is a promoted replica and may lack what its master had granted",
    ReasonCode.DUPLICATE: "is the same server as {first}; list every node once",
    ReasonCode.WRONG_TYPE: "WRONGTYPE: a key under KEY_PREFIX (the lock's own, fences or held) is "
    "somebody else's; delete or rename it",
    ReasonCode.OUT_OF_MEMORY: "OOM: out of memory; raise its maxmemory",
    ReasonCode.LOADING: "LOADING: still loading its data",
    ReasonCode.BUSY: "BUSY: running somebody's endless script (SCRIPT KILL ends it)",
    ReasonCode.READ_ONLY: "READONLY: is a replica",
    ReasonCode.CANNOT_SAVE: "MISCONF: cannot save to disk and refuses writes",
    ReasonCode.TOO_FEW_REPLICAS: "NOREPLICAS: has too few replicas and refuses writes",
    ReasonCode.NO_PERMISSION: f"NOPERM: the user lacks a right; see the ACL line in {RIGHTS}",
    ReasonCode.TOO_MANY_CLIENTS: "has as many clients as it allows",
    ReasonCode.ERROR: "answered with an error: {text}",
    ReasonCode.UNREADABLE_ERROR: "answered with an error that is no text",
    ReasonCode.NO_ANSWER: "no answer for {seconds:.2f} s",
    ReasonCode.NOT_WAITED_FOR: "not waited for",
    ReasonCode.BACKLOG: "has too much to answer already",
    ReasonCode.GRANT_UNANSWERED: "it has not answered the grant yet",
    ReasonCode.GONE: "the key is missing or somebody else's",
    ReasonCode.NOT_THE_PROTOCOL: "sent what is not the Redis protocol",
    ReasonCode.TOO_LONG: "sent an answer that is too long",
    ReasonCode.UNASKED: "sent an answer to nothing",
    ReasonCode.OUT_OF_STEP: "answered another question",
    ReasonCode.SENSELESS: "sent an answer that makes no sense",
    ReasonCode.CLOSED: "closed",
    ReasonCode.INTERRUPTED: "interrupted",
    ReasonCode.TAKES_NO_MORE: "takes no more data",
    ReasonCode.SURPLUS: "more connections than needed",
    ReasonCode.GUARD_OVER: "the restart guard is over: look again",
    ReasonCode.LEFT_QUEUE: "left the queue",
    ReasonCode.LOOP_ENDS: "the event loop ends",
    ReasonCode.EXITING: "the interpreter shuts down",
    ReasonCode.HELD: "held by {holder} on {nodes} of {size} nodes",
    ReasonCode.RECORDED: "its work is recorded as done",
    ReasonCode.NO_MAJORITY: "{votes} of {size} nodes could vote, {needed} are needed",
    ReasonCode.GRANTED_TOO_LATE: "a majority granted it, but too late for its ttl",
    ReasonCode.FENCE_UNKNOWN: "a majority granted it and then did not answer",
    ReasonCode.ADOPTED_BY_SEVERAL: "several adopt it at the same time; the handle can still be "
    "adopted, until its ttl is over",
    ReasonCode.ALREADY_QUEUED: "the task {task_id} for the same key waits or runs already",
    ReasonCode.STILL_ADOPTABLE: "{cause}; the handle can still be adopted, until its ttl is over",
    ReasonCode.NOT_EXTENDED: "{votes} of {size} nodes answered; held until its deadline",
    ReasonCode.NOT_ASKED: "the nodes could not be asked",
    ReasonCode.PROLONGED_ELSEWHERE: "too late; the watchdog has prolonged it, and it is held "
    "until its deadline",
    ReasonCode.TOO_LATE_TO_ADOPT: "too late to adopt: the lease is over, or another process has it",
    ReasonCode.OVER_BEFORE_ASKED: "over before it could be extended",
    ReasonCode.OVER_BEFORE_EXTENDED: "over before a majority extended it",
    ReasonCode.DENIED: "a majority does not have it any more",
    ReasonCode.RAN_OUT: "its time ran out",
    ReasonCode.NEVER_RELEASED: "what was to release it was interrupted or dropped, so its time ran "
    "out",
    ReasonCode.TIME_OVER: "its time is over",
    ReasonCode.LOST: "the lease was lost",
    ReasonCode.LOST_IN_BLOCK: "the lease was lost before the block ended",
    ReasonCode.RELEASED: "the lease was released",
    ReasonCode.GIVEN_AWAY: "the lease was given away",
    ReasonCode.PARENTS: "the lease belongs to the parent process",
    ReasonCode.NEVER_TAKEN: "this code runs without the lock that it needs",
    ReasonCode.STALE_FENCE: "a later holder has claimed {rows}, or it is gone; this holder's fence "
    "is {fence}",
    ReasonCode.HEALTHY: "healthy ({votes} of {size} nodes vote, {needed} are needed)",
    ReasonCode.DEGRADED: "degraded ({votes} of {size} nodes vote, {needed} are needed)",
    ReasonCode.NO_LOCK: "no majority, no lock can be taken ({votes} of {size} nodes vote, {needed} "
    "are needed)",
    ReasonCode.ADVICE_GUARD: "restart guard: started or emptied a short while ago; votes by itself "
    "when its seconds are over",
    ReasonCode.ADVICE_CLOCK: "clock: {cause}",
    ReasonCode.ADVICE_DOWN: "down: start the server, or correct its entry in "
    "REDLOCK[{alias!r}]['NODES']",
    ReasonCode.ADVICE_NODE: "{cause}; {action}",
    ReasonCode.EVICTS: "{policy}: with this maxmemory-policy a full node deletes locks that are "
    "held (keys deleted since its start: {evicted}); set noeviction",
    ReasonCode.READY: "ready ({votes} of {size} nodes vote, {needed} are needed)",
    ReasonCode.TO_DO: "locks work, and something is to be done ({votes} of {size} nodes vote, "
    "{needed} are needed)",
    ReasonCode.NOT_READY: "too few nodes can vote, no lock can be taken ({votes} of {size} nodes "
    "vote, {needed} are needed)",
    ReasonCode.NOT_YET: "not yet, no lock can be taken for {seconds:.0f} s more ({votes} of {size} "
    "nodes vote, {needed} are needed)",
    ReasonCode.NOT_COUNTED: "not yet, no lock can be taken until {seconds:g} s after "
    "redlock_status has seen the new nodes ({votes} of {size} nodes vote, {needed} are needed)",
    ReasonCode.UNSEEN: "is new or was emptied, and votes {seconds:g} s after a process has first "
    "seen it; run redlock_status to begin the count",
    ReasonCode.IN_MEMORY: "the nodes are memory:// nodes, of which every process has its own; name "
    "servers that all processes share",
    ReasonCode.OLD_SERVER: "runs {software}; upgrade it: {oldest} is the oldest that is tested",
    ReasonCode.SLOW: "a round trip takes {milliseconds:.1f} ms, more than a tenth of NODE_TIMEOUT "
    "({timeout:g} s); raise NODE_TIMEOUT to {enough:g} or more, or bring the node nearer",
    ReasonCode.TOO_SLOW: "a round trip takes {milliseconds:.1f} ms, more than NODE_TIMEOUT "
    "({timeout:g} s), so its replies come too late; raise NODE_TIMEOUT to {enough:g} or more",
    ReasonCode.RIGHTS_MISSING: "the user may not run {commands}; give it the rights of the ACL "
    f"line in {RIGHTS}",
    ReasonCode.KEYS_DENIED: "the user may not use the keys under KEY_PREFIX; give it the rule "
    "~{prefix}*",
    ReasonCode.EVERYBODY: "asks for no password, so all who reach it can take and delete locks; "
    "set an ACL user, or let nobody else reach it",
    ReasonCode.MAY_FORGET: "forgets locks that are held when it restarts, and RESTART_GUARD is "
    "False; remove RESTART_GUARD, or set appendonly yes and appendfsync always",
    ReasonCode.SNAPSHOTS: "takes snapshots, which no lock needs: a failed one stops writes; set "
    'save ""',
}
# What to do about a node, where the sentence does not say it.
CORRECT: Final = "start the server, or correct its entry in NODES"
ELSEWHERE: Final = "correct host and port in NODES"
INDEPENDENT: Final = "put an independent master in its place"
ACTIONS: Final = {
    ReasonCode.CONNECTION_REFUSED: CORRECT,
    ReasonCode.NO_SUCH_SOCKET: CORRECT,
    ReasonCode.NO_SUCH_HOST: "correct its host in NODES, or repair the name service",
    ReasonCode.NO_ROUTE: "repair the network, or correct its host in NODES",
    ReasonCode.CONNECT_TIMEOUT: "look whether the server hangs, or a firewall drops packets",
    ReasonCode.CONNECT_FAILED: "correct its entry in NODES",
    ReasonCode.CONNECTION_LOST: CORRECT,
    ReasonCode.CONNECTION_CLOSED: CORRECT,
    ReasonCode.STRANGE_INFO: ELSEWHERE,
    ReasonCode.STRANGE_TIME: ELSEWHERE,
    ReasonCode.NOT_THE_PROTOCOL: ELSEWHERE,
    ReasonCode.TOO_LONG: ELSEWHERE,
    ReasonCode.UNASKED: ELSEWHERE,
    ReasonCode.OUT_OF_STEP: ELSEWHERE,
    ReasonCode.SENSELESS: ELSEWHERE,
    ReasonCode.RESTART_GUARD: "wait, it votes by itself when they are over",
    ReasonCode.CLUSTER: INDEPENDENT,
    ReasonCode.REPLICA: INDEPENDENT,
    ReasonCode.PROMOTED: f"{INDEPENDENT}, or delete its dump.rdb and restart it",
    ReasonCode.READ_ONLY: INDEPENDENT,
    ReasonCode.TOO_FEW_REPLICAS: "set min-replicas-to-write 0",
    ReasonCode.LOADING: "look again when it has loaded them",
    ReasonCode.CANNOT_SAVE: "make room on its disk, or switch persistence off",
    ReasonCode.TOO_MANY_CLIENTS: "raise its maxclients, or end clients",
    ReasonCode.ERROR: "look into its log",
    ReasonCode.UNREADABLE_ERROR: "look into its log",
}
# Perhaps nothing runs there. With another reason a server does, and to start it is no help.
SILENT: Final = frozenset(
    {
        ReasonCode.DOWN,
        ReasonCode.CONNECTION_REFUSED,
        ReasonCode.NO_SUCH_SOCKET,
        ReasonCode.NO_SUCH_HOST,
        ReasonCode.NO_ROUTE,
        ReasonCode.CONNECT_TIMEOUT,
        ReasonCode.CONNECT_FAILED,
        ReasonCode.CONNECT_RAISED,
        ReasonCode.CONNECTING,
        ReasonCode.NEVER_REACHED,
        ReasonCode.CONNECTION_LOST,
        ReasonCode.CONNECTION_CLOSED,
        ReasonCode.NO_ANSWER,
        ReasonCode.NOT_WAITED_FOR,
    }
)
# Something is wrong with the settings or the server, and one reply does not show all of it.
SET_UP: Final = frozenset(
    {
        ReasonCode.CONNECTING,
        ReasonCode.CONNECT_TIMEOUT,
        ReasonCode.CONNECT_FAILED,
        ReasonCode.CONNECT_RAISED,
        ReasonCode.NOT_TLS,
        ReasonCode.PERHAPS_NOT_TLS,
        ReasonCode.TLS,
        ReasonCode.PERHAPS_TLS,
        ReasonCode.UNTRUSTED,
        ReasonCode.OTHER_HOST,
        ReasonCode.EXPIRED,
        ReasonCode.CERTIFICATE_NEEDED,
        ReasonCode.WEB_SERVER,
        ReasonCode.NOT_A_NODE,
        ReasonCode.SENTINEL,
        ReasonCode.PERHAPS_SENTINEL,
        ReasonCode.STRANGE_INFO,
        ReasonCode.STRANGE_TIME,
        ReasonCode.NO_SUCH_DATABASE,
        ReasonCode.UNSENDABLE,
        ReasonCode.LOGIN_REFUSED,
        ReasonCode.NO_PASSWORD_THERE,
        ReasonCode.PASSWORD_NEEDED,
        ReasonCode.CLUSTER,
        ReasonCode.REPLICA,
        ReasonCode.PROMOTED,
        ReasonCode.DUPLICATE,
        ReasonCode.WRONG_TYPE,
        ReasonCode.NO_PERMISSION,
        ReasonCode.ERROR,
        ReasonCode.UNREADABLE_ERROR,
        ReasonCode.NOT_THE_PROTOCOL,
    }
)
LOOK_FURTHER: Final = "run manage.py redlock_check to see what each node needs"
# Without the data that a table shows beside it.
BRIEF: Final = {
    ReasonCode.NO_ANSWER: "no answer",
    ReasonCode.RESTART_GUARD: "restart guard",
    ReasonCode.CLOCK_AHEAD: "clock {seconds:.1f} s ahead",
    ReasonCode.CLOCK_BEHIND: "clock {seconds:.1f} s behind",
    ReasonCode.OUR_CLOCK_AHEAD: "clock {behind:.1f} s behind",  # the node's own
    ReasonCode.OUR_CLOCK_BEHIND: "clock {ahead:.1f} s ahead",
    ReasonCode.EVICTS: "{policy}",
}
# What a reason adds, if this belongs to it.
MORE: Final = {
    "only_node_of": " (if this single node's locks only save work, set 'RESTART_GUARD': False in "
    "REDLOCK[{only_node_of!r}])",
    "reentered": "; {by} holds {reentered!r} already, and a lock is not re-entrant: take it once, "
    "around all that needs it, and check it inside by assert_locked({reentered!r})",
}
IF_EMPTY: Final = {"holder": "somebody", "text": "no text"}
