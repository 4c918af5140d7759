"""The fixture of each kind of tasks."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from django.test import override_settings

from tests.celery.desk import Desk

from .kinds import NAMES, Kind, OfCelery, OfDjango, OfDjangoAsync


@pytest.fixture(params=NAMES)
def kind(request: pytest.FixtureRequest, transactional_db: None) -> Iterator[Kind]:
    """Each kind of tasks, on five nodes in memory."""
    nodes = [f"memory://{uuid.uuid4().hex}" for _ in range(5)]
    with override_settings(REDLOCK={"default": {"NODES": nodes}}):
        if request.param == OfCelery.name:
            yield OfCelery(Desk())
            return
        from tests.tasks import conftest

        made = OfDjango if request.param == OfDjango.name else OfDjangoAsync
        with override_settings(TASKS=conftest.TASKS):
            yield made(conftest.Desk())
