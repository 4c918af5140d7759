"""django-redis: the lock of Django's cache, on one node; it is redis-py's Lock."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import django
from django.conf import settings as django_settings

from .conversation import serve, settings

backend = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": settings()["urls"][0]}
django_settings.configure(CACHES={"default": backend})
django.setup()


class Client:
    """One attempt."""

    def acquire(self, key: str, ttl: float) -> Any:
        from django.core.cache import cache

        lock = cache.lock(key, timeout=ttl)  # type: ignore[attr-defined]
        return lock if lock.acquire(blocking=False) else None

    def release(self, lock: Any) -> None:
        lock.release()


named = f"{version('django-redis')}, redis-py {version('redis')}"
serve(named, {"threads": Client()})
