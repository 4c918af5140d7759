"""All kinds of worlds, by name, and the playing of one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from . import beyond, renewing
from .profiles import PROFILES, Profile
from .queued import WAITING
from .renewing import KeepingWorld
from .world import World

KINDS: Final = (*PROFILES, *WAITING, *renewing.PROFILES)
EVERYWHERE: Final = {
    each.name: each
    for each in (*KINDS, *(side for at in beyond.LIMITS for side in (at.outside, at.inside)))
}


def quiet() -> None:
    """Log nothing: many a holder is told of a loss, by the code that production runs."""
    logging.getLogger("django_redlock").disabled = True


@contextmanager
def quietly() -> Iterator[None]:
    """Log nothing while the block runs: thousands of losses are not worth a line each."""
    logger = logging.getLogger("django_redlock")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def play(seed: int, profile: Profile | None = None) -> World:
    """One world, to its end; the seed chooses the profile if none is given."""
    where = profile or KINDS[seed % len(KINDS)]
    world = (KeepingWorld if where in renewing.PROFILES else World)(seed, where)
    world.run()
    return world
