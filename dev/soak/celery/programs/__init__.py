"""What workers and publishers run: the same bodies, locked by different packages.

Those of other packages run in environments without Django and without this package, so modules
here import only Celery and what their own package needs.
"""
