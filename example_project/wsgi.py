"""For gunicorn and the like: `gunicorn example_project.wsgi`."""

import os

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
# To try it out without a web server; on a real site that serves these files.
application = StaticFilesHandler(get_wsgi_application())
