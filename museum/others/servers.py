"""The clients of servers, for libraries that let their users make them."""

from __future__ import annotations

import redis

from museum.recipes.interface import Place
from museum.recipes.polling import client_of


def clients_of(place: Place) -> list[redis.Redis]:
    """Return a client of each server.

    They do not send again what was not answered: with the ten retries of redis-py 8, one dead
    server takes longer than the ttl.
    """
    return [client_of(place, index) for index in range(len(place.urls))]
