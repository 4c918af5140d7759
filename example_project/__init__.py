"""The example: a project with Celery, whose app every process has that imports the project."""

from .celery import app as celery_app

__all__ = ["celery_app"]
