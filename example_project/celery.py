"""The Celery application: `celery -A example_project worker`."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
app = Celery("example_project")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
# The current app is a thread's own, and a web server has many threads.
app.set_default()
