"""Find the server of a cache of django-redis, which a node may name: ``{"CACHE": alias}``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.core.cache import InvalidCacheBackendError, caches
from redis.cluster import RedisCluster
from redis.sentinel import SentinelManagedConnection

from .extras import needs
from .transport.address import Address, from_options

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_NODE: Final = "the cache {!r} {}: name one independent master, by its own URL"


def address_of(alias: str, options: Mapping[str, Any]) -> Address:
    """Return the address of the server of the django-redis cache with this alias.

    Raises:
        ValueError: there is none, or it is not one server that stays the same.
        ImproperlyConfigured: django-redis does not make the cache; its own text.
    """
    try:
        with needs("CACHE", "django_redis", "django-redlock[django-redis]"):
            from django_redis import get_redis_connection
    except ModuleNotFoundError as error:
        raise ValueError(str(error)) from None
    try:
        cache = caches[alias]
    except InvalidCacheBackendError:
        msg = f"CACHES has no alias {alias!r}"
        raise ValueError(msg) from None
    factory = getattr(getattr(cache, "client", None), "connection_factory", None)
    if factory is None:
        msg = (
            f"the cache {alias!r} is not one of django-redis: its BACKEND in CACHES must be "
            "django_redis.cache.RedisCache"
        )
        raise ValueError(msg)
    if issubclass(getattr(factory, "redis_client_cls", object), RedisCluster):
        msg = NO_NODE.format(alias, "is a Redis Cluster, whose servers get no vote")
        raise ValueError(msg)  # noqa: TRY004 - the caller adds where and raises its own
    try:
        pool = get_redis_connection(alias).connection_pool
    except (AttributeError, NotImplementedError):
        raise ValueError(NO_NODE.format(alias, "spreads its keys over several servers")) from None
    if issubclass(pool.connection_class, SentinelManagedConnection):
        msg = NO_NODE.format(alias, "is found by Sentinel, which replaces its server")
        raise ValueError(msg)  # noqa: TRY004 - as above
    kept = {
        key: value
        for key, value in pool.connection_kwargs.items()
        if key in {"host", "port", "path", "db", "username", "password"} or key.startswith("ssl_")
    }
    return from_options(pool.connection_class, {**kept, **options})
