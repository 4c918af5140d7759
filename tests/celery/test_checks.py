"""The system checks of locked tasks: each finds its fault, and is silent without it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule
from celery.signals import import_modules
from django.core import checks

from django_redlock import apps, redlock
from django_redlock.celery import LockedTask, locked_task
from django_redlock.celery.checks import check_tasks
from django_redlock.views import single_flight
from tests.support.addresses import explained

from .desk import Desk

SAFE = {"reject_on_worker_lost": True}
MARKED: dict[str, Any] = {"mode": "until_finished"}


def nothing() -> None:
    """Do nothing."""


def test_the_check_is_registered() -> None:
    """``manage.py check`` and a worker run it."""
    registered: list[Any] = checks.registry.registry.get_checks()
    assert apps.check_tasks in registered


def said_of(app: Celery) -> list[checks.CheckMessage]:
    """What the check says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("django_redlock.celery.checks.current_app", app)
        return check_tasks()


def found_in(app: Celery) -> list[str]:
    """The ids of what the check says of our tasks; shared ones of other tests are in each app."""
    found = [each for each in said_of(app) if "task desk." in each.msg]
    assert all(explained(each.hint) for each in found)
    return [str(each.id).rpartition(".")[2] for each in found]


@pytest.mark.parametrize(
    ("lock", "task", "settings", "found"),
    [
        ({"ttl": 10, "renew": False}, {"soft_time_limit": 60}, {}, ["W006"]),
        ({"ttl": 10, "renew": False}, {}, {"task_time_limit": 60}, ["W006"]),
        ({"ttl": 10, "renew": False}, {"time_limit": 10}, {}, []),
        ({"ttl": 10}, {"time_limit": 60}, {}, []),
        ({"alias": "nowhere"}, {"time_limit": 60}, {}, []),
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
        (MARKED, {"base": LockedTask}, {}, []),
        ({}, {"acks_late": True}, {}, ["W009"]),
        ({}, {"acks_late": True}, {"task_reject_on_worker_lost": True}, []),
    ],
)
def test_what_is_risky_is_told(
    desk: Desk, lock: dict[str, Any], task: dict[str, Any], settings: dict[str, Any], found: object
) -> None:
    """Where a task and the settings do not fit together, a check says what to do."""
    desk.app.conf.update(settings)
    desk.task(locked_task("name", **lock)(nothing), **task)
    assert found_in(desk.app) == found


# -- what beat sends -------------------------------------------------------------------------------

TICK = {"schedule": 1.0}


@pytest.mark.parametrize(
    ("entry", "lock", "found"),
    [
        (TICK, {}, "every 1 s"),
        ({"schedule": 60}, {"queue_ttl": 61}, "every 60 s"),
        ({"schedule": timedelta(minutes=5)}, {}, "every 300 s"),
        ({"schedule": schedule(30)}, {}, "every 30 s"),
        ({"schedule": crontab(minute="*/15")}, {}, "every 900 s"),
        ({"schedule": crontab(minute="0,50")}, {}, "every 600 s"),
        ({"schedule": crontab(hour="0,23", minute=0)}, {"queue_ttl": 7200}, "every 3600 s"),
        ({**TICK, "options": {"expires": 5}}, {}, "for up to 5 s"),
        ({**TICK, "options": {"expires": 0.9}}, {}, ""),
        ({**TICK, "options": {"countdown": 5}}, {"queue_ttl": 0.5}, "for up to 5.5 s"),
        (TICK, {"queue_ttl": 0.9}, ""),
        ({"schedule": crontab(hour="*", minute=0)}, {}, ""),
        ({"schedule": crontab(hour=3, minute=0)}, {}, ""),
        ({"schedule": crontab(hour=3, minute=0, day_of_month=1)}, {"queue_ttl": 172_800}, ""),
        ({"schedule": crontab(hour=3, minute=0)}, {"queue_ttl": 172_800}, "every 86400 s"),
        ({"schedule": BaseSchedule()}, {}, ""),  # as of the sun
        ({**TICK, "options": {"eta": "soon"}}, {}, ""),  # Celery refuses it
        ({**TICK, "task": "desk.other"}, {}, ""),
    ],
)
def test_a_mark_that_outlives_the_period_of_beat_is_told(
    desk: Desk, entry: dict[str, Any], lock: dict[str, Any], found: str
) -> None:
    """django_redlock.W028: by the schedule, the options of the entry, and ``queue_ttl``."""
    desk.app.conf.beat_schedule = {"tick": {"task": "desk.nothing", **entry}}
    desk.task(locked_task("x", **{**MARKED, **lock})(nothing), base=LockedTask)
    desk.task(locked_task("y")(nothing), name="desk.unmarked")
    desk.app.conf.beat_schedule["other"] = {"task": "desk.unmarked", **TICK}
    assert found_in(desk.app) == ["W028"] * bool(found)
    if found:
        (said,) = [each for each in said_of(desk.app) if each.id == "django_redlock.W028"]
        assert found in said.msg
        assert "'tick'" in str(said.hint)


# -- what it imports -------------------------------------------------------------------------------


@pytest.mark.parametrize("older", [False, True], ids=["of the application", "of any"])
def test_the_check_sets_up_django_no_second_time(desk: Desk, *, older: bool) -> None:
    """Celery's part for Django would, as it hears of imports; Celery 5.6 has it hear of any."""
    (part,) = [each for each in desk.app._fixups if hasattr(each, "on_import_modules")]
    part.worker_fixup = setting_up = Mock()
    for sender in (desk.app, None):
        import_modules.disconnect(part.on_import_modules, sender=sender)
    sender = None if older else desk.app
    import_modules.connect(part.on_import_modules, sender=sender)
    try:
        found_in(desk.app)
        assert setting_up.validate_models.call_count == 0
        import_modules.send(sender=desk.app)
        assert setting_up.validate_models.call_count == 1
    finally:
        import_modules.disconnect(part.on_import_modules, sender=sender)


@pytest.mark.django_db
def test_tasks_that_cannot_be_imported_stop_no_check(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that starts shows the traceback; what is known of the others is told."""
    desk.app.conf.imports = [name := f"tasks_{desk.queue.replace('-', '_')}"]
    (tmp_path / f"{name}.py").write_text("raise LookupError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    desk.task(locked_task("name")(nothing), acks_late=True)
    assert found_in(desk.app) == ["W009"]
    with pytest.raises(LookupError, match="imported"):
        desk.app.loader.import_default_modules()


def limits_in(app: Celery) -> list[str]:
    """What is said of the limits of tasks and views."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("django_redlock.celery.checks.current_app", app)
        found = [each for each in apps.check_tasks() if each.id == "django_redlock.W031"]
    assert all(explained(each.hint) for each in found)
    return [each.msg for each in found if "'limits:" in each.msg]


def test_a_name_with_a_limit_and_without_is_reported(desk: Desk) -> None:
    """W031, whatever the fields are called; nothing is said of equal limits."""
    kinds: list[tuple[str, str, int | None]] = [
        ("a", "limits:{x}", 3),
        ("b", "limits:{x}", 3),
        ("c", "limits:other:{x}", None),
        ("d", "limits:{tenant}", None),
    ]

    def add(name: str, key: str, limit: int | None) -> None:
        @locked_task(key, limit=limit)
        def work(x: int = 0, tenant: int = 0) -> None:
            """Do nothing."""

        desk.task(work, name=f"desk.{name}")

    for each in kinds[:3]:
        add(*each)
    assert limits_in(desk.app) == []
    add(*kinds[3])
    (text,) = limits_in(desk.app)
    assert text == (
        "The name 'limits:{}' has limit=3 in the task desk.a, and none in the task desk.d: these "
        "are two locks, and do not keep each other out."
    )


def test_a_name_of_a_task_and_of_a_view_is_reported(desk: Desk) -> None:
    """W031 looks at both; two limits are told with what becomes of them."""
    view = single_flight("limits:view:{pk}", limit=5)(export)

    @locked_task("limits:view:{pk}", limit=2)
    def work(pk: int) -> None:
        """Do nothing."""

    desk.task(work)
    (text,) = limits_in(desk.app)
    assert "limit=2 in the task desk.work and limit=5 in the single_flight of tests.celery" in text
    assert text.endswith(
        "up to 5 hold it, and a caller with a smaller limit waits for the first slots alone."
    )
    del view


def export(request: Any, pk: int) -> None:
    """Stand for a view."""


def test_a_name_of_a_function_is_known(desk: Desk) -> None:
    """W031 looks at what is under ``@redlock``, too."""

    @redlock("limits:function:{x}", limit=2)
    def one(x: int) -> None:
        """Do nothing."""

    @redlock("limits:function:{y}")
    def other(y: int) -> None:
        """Do nothing."""

    (text,) = limits_in(desk.app)
    assert "limit=2 in the function tests.celery.test_checks." in text
    assert one is not other
