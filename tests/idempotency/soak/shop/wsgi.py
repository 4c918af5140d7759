"""What the server serves."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.idempotency.soak.shop.settings")
application = get_wsgi_application()
