"""What a type checker says of views that use ``request.lease``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/how-to/views.md"

OTHERS = """
from django.http import HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_redlock.views import LockedRequest, single_flight


@single_flight
async def checkout(request: LockedRequest) -> HttpResponse:
    return HttpResponse(str(request.lease.fence if request.lease else request.user.pk))


@method_decorator(single_flight, name="dispatch")
class Pay(View):
    request: LockedRequest

    def post(self, request: LockedRequest, pk: int) -> HttpResponse:
        return HttpResponse(str(self.request.lease is request.lease))


urlpatterns = [path("checkout", checkout), path("pay/<int:pk>", Pay.as_view())]
"""


def checked(home: Path, **sources: str) -> str:
    """What mypy says of these files in its strict mode."""
    for name, source in sources.items():
        (home / f"{name}.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *(f"{name}.py" for name in sources)],
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_a_view_that_uses_its_lease_passes_mypy(tmp_path):
    """That of the page, views of a class and async ones; and they fit into urls."""
    (page,) = re.findall(
        r"^```python\n# billing/typed\.py\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
    assert "Success: no issues found in 2 source files" in checked(
        tmp_path, page=page, others=OTHERS
    )
