"""What the server for asyncio serves."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.views.shop.settings")
application = get_asgi_application()
