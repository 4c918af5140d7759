"""Look at all locks as an operator does, so many times; print the seconds of each as JSON.

    python -m benchmarks.programs.watching ALIAS ROUNDS        ALIAS: settings in JSON

It runs in the project of the tests, which has the admin.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"

import django

MOST = "10000"  # locks that redlock_status shows, at the most
NO_MAJORITY = 4  # its exit status


def main() -> None:
    """Look."""
    alias, rounds = json.loads(sys.argv[1]), int(sys.argv[2])
    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client, override_settings
    from django.urls import reverse

    call_command("migrate", verbosity=0)
    visitor = Client()
    visitor.force_login(User.objects.create_superuser("operator"))
    page = reverse("admin:django_redlock_lockkey_changelist")
    taken: dict[str, list[float | None]] = {"status": [], "page": [], "json": []}

    def look(*words: str) -> float | None:
        """Seconds of redlock_status; None where it found no majority, and so no locks."""
        start = time.perf_counter()
        try:
            call_command("redlock_status", *words, stdout=io.StringIO())
        except SystemExit as error:
            if error.code == NO_MAJORITY:
                return None
        return time.perf_counter() - start

    with override_settings(REDLOCK={"default": alias}, ALLOWED_HOSTS=["testserver"]):
        for _ in range(rounds + 1):
            taken["status"].append(look())
            start = time.perf_counter()
            assert visitor.get(page).status_code == 200
            taken["page"].append(time.perf_counter() - start)
            taken["json"].append(look("--json", "--limit", MOST))
            time.sleep(1)  # nodes that were too slow for that are asked again
    # The first look connects to the nodes.
    print(json.dumps({name: seconds[1:] for name, seconds in taken.items()}))


if __name__ == "__main__":
    main()
