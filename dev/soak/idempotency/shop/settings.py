"""The settings of the site; in the environment of another package there is none of ours."""

import json
import os
from typing import Any

from dev.soak.idempotency.candidates import CANDIDATES, OURS, PEER

NAME = os.environ["SOAK_CANDIDATE"]
CANDIDATE = CANDIDATES[NAME]
REDIS = os.environ.get("SOAK_REDIS", "")

SECRET_KEY = "not a secret: the tests protect nothing"
USE_TZ = True
ALLOWED_HOSTS = ["127.0.0.1"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = f"dev.soak.idempotency.shop.{CANDIDATE.urls}"
DATABASES = {
    "default": json.loads(os.environ["SOAK_DATABASE"]) | {"ATOMIC_REQUESTS": CANDIDATE.atomic}
}
if DATABASES["default"]["ENGINE"].endswith("mysql"):
    import pymysql

    pymysql.install_as_MySQLdb()
INSTALLED_APPS = ["dev.soak.idempotency.shop"]
MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]  # tells the length of an answer
REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "UNAUTHENTICATED_USER": None,
}

if CANDIDATE.locks:
    INSTALLED_APPS += ["django_redlock"]
    REDLOCK = {"default": json.loads(os.environ["SOAK_LOCKS"])}
if NAME == OURS:
    INSTALLED_APPS += ["django_redlock.idempotency"]
if CANDIDATE.environment == PEER:  # its defaults, otherwise
    INSTALLED_APPS += ["rest_framework", "drf_idempotency"]
    IDEMPOTENCY: dict[str, Any] = {"BACKEND": "drf_idempotency.backends.database.DatabaseBackend"}
    if CANDIDATE.redis:
        IDEMPOTENCY = {
            "BACKEND": "drf_idempotency.backends.redis.RedisBackend",
            "BACKEND_OPTIONS": {"url": REDIS},
        }
    if CANDIDATE.urls == "plain":
        MIDDLEWARE += ["drf_idempotency.middleware.IdempotencyMiddleware"]
if CANDIDATE.urls == "marked":  # as its README has it for several processes
    MIDDLEWARE += ["idempotency_key.middleware.ExemptIdempotencyKeyMiddleware"]
    CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": REDIS}
    }
    IDEMPOTENCY_KEY = {
        "CONFLICT_STATUS_CODE": None,  # a replay has the status of the first answer
        "STORAGE": {"CLASS": "idempotency_key.storage.CacheKeyStorage"},
        "LOCK": {
            "CLASS": "idempotency_key.locks.redis.MultiProcessRedisLock",
            "LOCATION": REDIS,
        },
    }
