"""Who keeps the requests of a key apart; ``shop`` has the site of each."""

from __future__ import annotations

from typing import NamedTuple

OURS = "ours"


class Candidate(NamedTuple):
    """A way to serve the shop.

    Attributes:
        urls: the module of the shop that decorates the view.
        environment: where it is installed; "": beside this package.
        replayed: the header that tells a replay; "": a replay does not tell.
        locks: whether it locks on five nodes.
        redis: whether it keeps anything in a Redis: one server, that dies and hangs as nodes do.
        atomic: whether the site has ATOMIC_REQUESTS.
    """

    urls: str
    environment: str = ""
    replayed: str = ""
    locks: bool = False
    redis: bool = False
    atomic: bool = False


PEER = "drf-idempotency"
CANDIDATES = {
    OURS: Candidate("ours", replayed="Idempotency-Replayed", locks=True),
    # The lock of ours without the record: a broken variant.
    "single-flight": Candidate("single_flight", replayed="Idempotency-Replayed", locks=True),
    # As its README begins: the middleware, and records in the database.
    PEER: Candidate("plain", PEER, "Idempotent-Replayed"),
    f"{PEER}-redis": Candidate("plain", PEER, "Idempotent-Replayed", redis=True),
    # The best that it can be: its decorator inside of the transaction of the request.
    f"{PEER}-atomic": Candidate("rest_framework", PEER, "Idempotent-Replayed", atomic=True),
    "django-idempotency-key": Candidate("marked", "django-idempotency-key", redis=True),
}
