"""What a type checker is told. ``make lint`` judges: it fails at an ignore that is not needed."""

from __future__ import annotations

import asyncio
from typing import assert_type

import pytest

from django_redlock import redlock
from django_redlock.celery import locked_task
from django_redlock.views import single_flight

from .support.listening import memory  # noqa: F401 - a fixture


@redlock("digest:{user}").once(keep=60)
def send(user: int) -> str:
    """Work that is done once."""
    return f"sent to {user}"


@redlock("digest:{user}").once(keep=60)
async def asend(user: int) -> str:
    """The same in a task."""
    return f"sent to {user}"


def test_work_that_is_done_once_may_return_none(memory):  # noqa: F811
    """So ``.upper()`` of the second call is found by a checker, and not on the second day."""
    first = send(7)
    assert_type(first, str | None)
    assert first == "sent to 7"
    assert send(7) is None

    second = asyncio.run(asend(7))
    assert_type(second, str | None)
    assert second is None


def test_a_word_that_there_is_not_is_found():
    """By the checker, and by the decorator."""
    with pytest.raises(ValueError, match="until_done"):
        locked_task("x", mode="until_done")(send)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="later"):
        locked_task("x", on_conflict="later")(send)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="wait"):
        single_flight("x", on_unavailable="wait")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="on_elected is None"):
        redlock("x").leader(on_elected=None)  # type: ignore[arg-type]
