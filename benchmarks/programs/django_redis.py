"""django-redis: the lock of Django's cache, on one node; it is redis-py's Lock."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import django
from django.conf import settings as django_settings

from .serve import Blocking, serve, settings


def main() -> None:
    """Serve the one style there is."""
    told = settings()
    backend = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": told["urls"][0]}
    django_settings.configure(CACHES={"default": backend})
    django.setup()
    from django.core.cache import cache

    def acquire(name: str) -> Any:
        lock = cache.lock(name, timeout=told["ttl"])  # type: ignore[attr-defined]
        return lock if lock.acquire(blocking=False) else None

    serve(
        f"{version('django-redis')}, redis-py {version('redis')}",
        {"threads": Blocking(acquire, lambda lock: lock.release())},
    )


if __name__ == "__main__":
    main()
