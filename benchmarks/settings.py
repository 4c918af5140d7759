"""The smallest project that the benchmark runs in, whichever revision it measures."""

SECRET_KEY = "not a secret: the benchmark protects nothing"
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_redlock"]
REDLOCK = {"default": {"NODES": [f"memory://default-{number}" for number in range(5)]}}
