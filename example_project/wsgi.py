"""For gunicorn and the like: `gunicorn example_project.wsgi`."""

import os

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
# So that nothing else is needed to try it out; on a real site the web server has these files.
application = StaticFilesHandler(get_wsgi_application())
