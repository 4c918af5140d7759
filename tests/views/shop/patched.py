"""The settings of a gunicorn whose master patches for gevent before it imports the project."""

from gevent import monkey  # type: ignore[import-untyped]

monkey.patch_all()
