"""``@locked_task``, for Celery and for Django's tasks alike; ``celery/`` and ``tasks/`` adapt it.

The options (``options``), which lock a call takes (``plan``), whether a message is sent
(``publishing``), and its run, or what becomes of it without one (``run``).
"""
