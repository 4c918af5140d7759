"""What a run is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from museum.room import Room

FAULTS: Final = {
    "none": "nothing happens",
    "load": "many clients at once",
    "killed": "the holder is killed",
    "paused": "the holder is paused past its ttl",
    "minority": "a minority of the servers is killed",
    "restart": "a server restarts empty",
    "failover": "the master dies, and a replica that lags becomes master",
    "replies": "replies are lost",
    "clock": "a client's clock is 30 s ahead",
    "jump": "a server's clock jumps ahead",
    "split": "clients reach different servers",
}


@dataclass(frozen=True)
class Run:
    """A script.

    Attributes:
        key: its name in commands and pictures.
        fault: which of FAULTS it is a case of.
        play: does it, in a room.
        words: what happens, a sentence for people.
        ttl: seconds for which clients take the lock.
        patience: after how many ttls without a holder somebody who asks is stuck.
        replica: whether the first server has a replica.
        clocks: whether the clocks of its servers can be set.
    """

    key: str
    fault: str
    play: Callable[[Room], None]
    words: str
    ttl: float = 1.0
    patience: float = 3.0
    replica: bool = False
    clocks: bool = False

    def __post_init__(self) -> None:
        if self.fault not in FAULTS:
            raise ValueError(f"{self.key}: there is no fault {self.fault!r}")
