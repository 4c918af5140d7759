"""The app of a Celery worker that runs Django's tasks, for django-tasks-celery."""

from __future__ import annotations

import django
from celery import Celery
from django.conf import settings

django.setup()

broker: str = settings.TASKS_BROKER  # type: ignore[misc] # of these settings alone
app = Celery("counted", broker=broker, backend=broker, include=["dev.soak.tasks.counted"])
app.set_default()
