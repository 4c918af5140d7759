"""A shop that several server processes serve, under ATOMIC_REQUESTS.

SHOP_HOME  a directory for the database and the marks of the requests
REDLOCK    the alias "default", as JSON
SHOP_BARE  set for a shop without a database
"""

import json
import os
from pathlib import Path

HOME = Path(os.environ["SHOP_HOME"])

SECRET_KEY = "not a secret: the tests protect nothing"
USE_TZ = True
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "tests.views.shop.urls"
SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django_redlock",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "tests.views.shop.urls.mark_refusals",
    "django_redlock.views.RedlockMiddleware",
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": HOME / "shop.sqlite3",
        "ATOMIC_REQUESTS": True,
        "OPTIONS": {
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
            "timeout": 30,  # seconds
        },
    },
}
if (
    "SHOP_BARE" in os.environ
):  # patched by gevent after the import, when greenlets share connections
    DATABASES = {}
    # REST framework imports it. That patch looks at every object, also at the site of this app,
    # which raises where the app is not installed.
    INSTALLED_APPS.append("django.contrib.admin")
REDLOCK = {"default": json.loads(os.environ["REDLOCK"])}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"refusals": {"()": "django_redlock.views.IgnoreRefusals"}},
    "loggers": {"django.request": {"filters": ["refusals"]}},
}
