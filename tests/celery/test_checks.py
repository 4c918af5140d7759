"""The system checks of locked tasks: each finds its fault, and is silent without it."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from django.core import checks

from django_redlock import apps
from django_redlock.celery import LockedTask, locked_task
from django_redlock.celery.checks import check_tasks
from tests.support.addresses import explained

from .desk import Desk

SAFE = {"reject_on_worker_lost": True}
MARKED = {"mode": "until_finished"}


def nothing() -> None:
    """Do nothing."""


def test_the_check_is_registered() -> None:
    """``manage.py check`` and a worker run it."""
    registered: list[Any] = checks.registry.registry.get_checks()
    assert apps.check_tasks in registered


def found_in(app: Celery) -> list[str]:
    """The ids of what the check says of our tasks; shared ones of other tests are in each app."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("django_redlock.celery.checks.current_app", app)
        found = [each for each in check_tasks() if each.msg.startswith("The task desk.")]
    assert all(explained(each.hint) for each in found)
    return [str(each.id).rpartition(".")[2] for each in found]


@pytest.mark.parametrize(
    ("lock", "task", "settings", "found"),
    [
        ({"ttl": 10, "renew": False}, {"soft_time_limit": 60}, {}, ["W006"]),
        ({"ttl": 10, "renew": False}, {}, {"task_time_limit": 60}, ["W006"]),
        ({"ttl": 10, "renew": False}, {"time_limit": 10}, {}, []),
        ({"ttl": 10}, {"time_limit": 60}, {}, []),
        ({"ttl": 100_000}, {}, {}, ["E003"]),
        ({"min_hold": 100_000}, {}, {}, ["E003"]),
        ({"alias": "nowhere"}, {}, {}, ["E003"]),
        ({"max_hold": 7200}, {"acks_late": True, **SAFE}, {"broker_url": "redis://x"}, ["W007"]),
        ({}, {"acks_late": True, "time_limit": 4000, **SAFE}, {"broker_url": "sqs://"}, ["W007"]),
        (
            {"max_hold": 7200},
            {"acks_late": True, **SAFE},
            {"broker_url": "redis://x", "broker_transport_options": {"visibility_timeout": 9000}},
            [],
        ),
        ({"max_hold": 7200}, {"acks_late": True, **SAFE}, {"broker_url": "amqp://x"}, []),
        ({"max_hold": 7200}, {}, {"broker_url": "redis://x"}, []),
        (MARKED, {"base": LockedTask}, {"result_backend": "disabled"}, ["W008"]),
        (
            {**MARKED, "on_duplicate": "drop"},
            {"base": LockedTask},
            {"result_backend": "disabled"},
            [],
        ),
        (MARKED, {"base": LockedTask}, {}, []),
        ({}, {}, {"result_backend": "disabled"}, []),
        ({}, {"acks_late": True}, {}, ["W009"]),
        ({}, {"acks_late": True}, {"task_reject_on_worker_lost": True}, []),
        (MARKED, {}, {}, ["E002"]),
    ],
)
def test_what_cannot_work_is_told_before_it_fails(
    desk: Desk, lock: dict[str, Any], task: dict[str, Any], settings: dict[str, Any], found: object
) -> None:
    """Where a task and the settings do not fit together, a check says what to do."""
    desk.app.conf.update(settings)
    desk.task(locked_task("name", **lock)(nothing), **task)
    assert found_in(desk.app) == found
