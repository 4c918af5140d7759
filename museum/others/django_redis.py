"""django-redis: `cache.lock`, which is redis-py's Lock on the server of the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from museum.recipes.interface import Place

from .redis_py import RedisPy

if TYPE_CHECKING:
    from redis.lock import Lock


class DjangoRedis(RedisPy):
    """The lock of a cache."""

    def _lock(self, place: Place) -> Lock:
        from django.conf import settings

        cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": place.urls[0]}
        settings.configure(CACHES={"default": cache})
        from django.core.cache import caches

        django_redis: Any = caches["default"]  # a cache of Django has no locks
        lock: Lock = django_redis.lock(place.name, timeout=place.ttl)
        return lock

    def empty(self) -> None:
        """Clear the cache, as anybody does who uses it."""
        from django.core.cache import cache

        cache.clear()
