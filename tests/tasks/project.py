"""The settings of workers and of what enqueues: TASKS_SITE in the environment has them as JSON."""

from __future__ import annotations

import json
import os

site = json.loads(os.environ["TASKS_SITE"])

SECRET_KEY = "not a secret: the tests protect nothing"
USE_TZ = True
TASKS_LOG = site["log"]
TASKS_BROKER = site["broker"]
INSTALLED_APPS = ["django_redlock", *site["apps"]]
RQ_QUEUES = {"default": {"URL": site["broker"]}}
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": site["database"],
        "OPTIONS": {"timeout": 60, "transaction_mode": "IMMEDIATE"},
    }
}
if site["queue"]:  # the tasks are in a database of their own
    DATABASES["other"] = {**DATABASES["default"], "NAME": site["queue"]}
    DATABASE_ROUTERS = ["tests.tasks.project.Router"]
REDLOCK = {"default": site["locks"]}
TASKS = {
    "default": {
        "BACKEND": "django_redlock.tasks.UniqueBackend",
        "OPTIONS": {"BACKEND": site["backend"], "OPTIONS": site["options"]},
    }
}


class Router:
    """To the tasks their database."""

    def db_for_write(self, model, **_):
        """The database of a model."""
        return "other" if model._meta.app_label == "django_tasks_database" else None

    db_for_read = db_for_write
