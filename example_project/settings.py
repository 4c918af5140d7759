"""The example project: a box office that sells seats under a lock.

EXAMPLE_DB       the SQLite file; default: example.sqlite3 beside this file
REDLOCK_NODES    the nodes' URLs, separated by commas; default: five servers on this machine,
                 redis://127.0.0.1:6379/0 to redis://127.0.0.1:6383/0
REDLOCK_OPTIONS  more keys of REDLOCK["default"], as JSON, e.g. {"TTL": 10}
"""

import json
import os
from pathlib import Path

LOCAL_NODES = ",".join(f"redis://127.0.0.1:{port}/0" for port in range(6379, 6384))

SECRET_KEY = "not a secret: the example protects nothing"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django_redlock",
    "example_project.box_office",
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("EXAMPLE_DB") or Path(__file__).with_name("example.sqlite3"),
        "OPTIONS": {
            # Readers do not wait for a writer, and writers wait for each other.
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
            "timeout": 10,  # seconds
        },
    },
}
REDLOCK = {
    "default": {
        "NODES": (os.environ.get("REDLOCK_NODES") or LOCAL_NODES).split(","),
        **json.loads(os.environ.get("REDLOCK_OPTIONS") or "{}"),
    },
}
