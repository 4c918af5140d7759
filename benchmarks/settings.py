"""The smallest project that the benchmark runs in, whichever revision it measures."""

from importlib.util import find_spec

SECRET_KEY = "not a secret: the benchmark protects nothing"
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_redlock"]
if find_spec("django_redlock.idempotency"):  # older revisions have none
    INSTALLED_APPS.append("django_redlock.idempotency")
REDLOCK = {"default": {"NODES": [f"memory://default-{number}" for number in range(5)]}}
