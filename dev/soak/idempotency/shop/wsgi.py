"""What the server serves."""

import os

from django.core.wsgi import get_wsgi_application
from django.urls import get_resolver

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dev.soak.idempotency.shop.settings")
application = get_wsgi_application()
# Loaded by the master, for all that it forks. Each would do it at its first request, and be killed.
assert get_resolver().url_patterns
