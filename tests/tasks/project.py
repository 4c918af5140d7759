"""The settings of workers and of what enqueues: TASKS_SITE in the environment has them as JSON."""

from __future__ import annotations

import json
import os

site = json.loads(os.environ["TASKS_SITE"])

SECRET_KEY = "not a secret: the tests protect nothing"
USE_TZ = True
TASKS_LOG = site["log"]
INSTALLED_APPS = ["django_redlock", "django_tasks_db"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": site["database"],
        "OPTIONS": {"timeout": 60, "transaction_mode": "IMMEDIATE"},
    }
}
REDLOCK = {"default": site["locks"]}
TASKS = {
    "default": {
        "BACKEND": "django_redlock.tasks.UniqueBackend",
        "OPTIONS": {"BACKEND": "django_tasks_db.DatabaseBackend"},
    }
}
