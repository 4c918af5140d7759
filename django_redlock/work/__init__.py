"""What ``@locked_task`` decides, for Celery and for Django's tasks alike; it sends no message.

Which lock a call takes (``plan``), whether a message is sent (``marks``), and what becomes of one
that is refused or delivered again (``redelivery``). ``celery/`` and ``tasks/`` are two adapters.
"""
