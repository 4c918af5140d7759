"""The example project: a box office that sells seats under locks.

EXAMPLE_DB       the SQLite file; default: example.sqlite3 beside this file
REDLOCK_NODES    the nodes' URLs, separated by commas; default: five servers on this machine,
                 redis://127.0.0.1:6379/0 to redis://127.0.0.1:6383/0
REDLOCK_OPTIONS  more keys of REDLOCK["default"], as JSON, e.g. {"TTL": 10}
BROKER_URL       Celery's broker, also for its results; default: redis://127.0.0.1:6384/0
DEMO_SWITCH      the demo sets this: a Unix socket by which its buttons kill nodes; default: none
"""

import json
import os
from pathlib import Path

LOCAL_NODES = ",".join(f"redis://127.0.0.1:{port}/0" for port in range(6379, 6384))

SECRET_KEY = "not a secret: the example protects nothing"
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
USE_TZ = True
TIME_ZONE = "UTC"
ROOT_URLCONF = "example_project.urls"
WSGI_APPLICATION = "example_project.wsgi.application"
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_redlock",
    "django_redlock.idempotency",
    "example_project.box_office",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("EXAMPLE_DB") or Path(__file__).with_name("example.sqlite3"),
        "OPTIONS": {
            # Readers do not wait for a writer. Writers wait for each other, and before they read:
            # SQLite refuses the write of a transaction that has read what another has changed.
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
            "transaction_mode": "IMMEDIATE",
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
DEMO_SWITCH = os.environ.get("DEMO_SWITCH") or ""
CELERY_BROKER_URL = os.environ.get("BROKER_URL") or "redis://127.0.0.1:6384/0"
CELERY_RESULT_BACKEND = CELERY_BROKER_URL
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1  # a child takes a message when it can begin with it
# Without DEBUG Django logs nothing to stderr: no person would see an error.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["stderr"], "level": "WARNING"},
    "loggers": {"django.request": {"level": "ERROR"}},  # a refused second click is no fault
}
