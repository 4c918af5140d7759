"""The smallest project that the tests, the type checker and the documentation can load."""

SECRET_KEY = "not a secret: the tests protect nothing"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django_redlock",
    "example_project.box_office",
]
REDLOCK = {"default": {"NODES": [f"memory://default-{number}" for number in range(5)]}}
