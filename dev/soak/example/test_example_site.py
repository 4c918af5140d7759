"""The example project as a process of its own runs it: its settings, a database in a file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run this in a new process of the example project."""
    environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings"
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("entry", ["wsgi", "manage.py"])
def test_every_process_has_the_celery_app(entry):
    """A web process and a command send to the broker of the settings, from each of its threads."""
    start = {
        "wsgi": "import example_project.wsgi",
        "manage.py": "from django.core.management import execute_from_command_line as run\n"
        "run(['manage.py', 'check'])",
    }[entry]
    code = f"""\
import threading
{start}
from example_project.box_office.tasks import build_report
def tell():
    print(build_report.app.main, build_report.app.conf.broker_url)
thread = threading.Thread(target=tell)
thread.start()
thread.join()
tell()
"""
    done = run(code, BROKER_URL="redis://127.0.0.1:1/0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["example_project redis://127.0.0.1:1/0"] * 2


def test_errors_of_the_site_are_logged():
    """The example's LOGGING writes what fails, and no refused click."""
    code = """\
import logging
from example_project import wsgi
from django.utils.log import log_response
from django.http import HttpResponse
for status in (409, 503, 500):
    log_response("answered %s", status, response=HttpResponse(status=status))
"""
    assert re.findall(r"answered \d+", run(code).stderr) == ["answered 503", "answered 500"]


def test_an_admin_form_waits_for_its_turn_before_it_reads(tmp_path):
    """A form of the admin is saved also when others write between what it reads and writes.

    On SQLite in a file, as the example is: there such a transaction would be refused.
    """
    code = """\
import threading, time
import django
django.setup()
from django.core.management import call_command
from django.db import connection
from django.db.models.signals import pre_save
from django.contrib.auth.models import User
from django.test import Client
from example_project.box_office.models import Show

call_command("migrate", verbosity=0)
show = Show.objects.create(title="The Seagull")
staff = Client(SERVER_NAME="localhost")
staff.force_login(User.objects.create_superuser("staff"))

def write():
    Show.objects.sell(show.pk, 1)
    connection.close()

def meanwhile(**_):
    other.start()
    other.join(0.5)

other = threading.Thread(target=write)
pre_save.connect(meanwhile, sender=Show)
path = f"/admin/box_office/show/{show.pk}/change/"
answer = staff.post(path, {"title": "Three Sisters", "sold": 3})
other.join()
show.refresh_from_db()
print(answer.status_code, show.title, show.sold)
"""
    done = run(code, EXAMPLE_DB=str(tmp_path / "site.sqlite3"))
    assert done.stdout == "302 Three Sisters 4\n", done.stderr
