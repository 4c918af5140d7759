"""The smallest project that the tests, the type checker and the documentation can load."""

from importlib.util import find_spec

SECRET_KEY = "not a secret: the tests protect nothing"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_redlock",
    "example_project.box_office",
    "tests.fencing",
    "django_redlock.idempotency",
]
if find_spec("django.tasks") and find_spec("django_tasks_db"):  # Django 6
    INSTALLED_APPS.append("django_tasks_db")
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "tests.urls_admin.strict_csp",
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
ROOT_URLCONF = "tests.urls_admin"
STATIC_URL = "static/"
SILENCED_SYSTEM_CHECKS = ["django_redlock.W010"]  # a model of tests/fencing has two fences
REDLOCK = {"default": {"NODES": [f"memory://default-{number}" for number in range(5)]}}
