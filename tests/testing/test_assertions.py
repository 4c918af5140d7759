"""``assert_free`` and ``assert_taken`` ask the nodes."""

from __future__ import annotations

import asyncio

import pytest

from django_redlock import redlock
from django_redlock.testing import assert_free, assert_taken, taken, unavailable


def test_a_free_name(aliases):
    """It is free, and not taken."""
    assert_free("a", "b")
    with pytest.raises(AssertionError, match="'a' of 'default' is free"):
        assert_taken("a")


def test_a_taken_name(aliases):
    """It is taken, and the error says by whom and for how long."""
    with taken("a", holder="worker-3"):
        assert_taken("a")
        assert_free("a", alias="other")
        with pytest.raises(AssertionError, match=r"'a' of 'default' is taken by worker-3, for \d"):
            assert_free("b", "a")
        with pytest.raises(AssertionError, match="'b' of 'default' is free"):
            assert_taken("a", "b")


def test_in_a_task(aliases):
    """They may be called in an event loop."""

    async def main() -> None:
        async with redlock("a"):
            assert_taken("a")
        assert_free("a")

    asyncio.run(main())


def test_a_name_that_is_kept(aliases):
    """Until ``min_hold`` is over, a released name is not free."""
    with redlock("a", min_hold=20):
        pass
    assert_taken("a")
    with pytest.raises(AssertionError, match="by min_hold, though it is released"):
        assert_free("a")


def test_without_a_majority(aliases):
    """Nothing is known then, so both fail."""
    with unavailable():
        for check in (assert_free, assert_taken):
            with pytest.raises(AssertionError, match="no majority of the nodes of 'default'"):
                check("a")


@pytest.mark.parametrize("check", [assert_free, assert_taken])
def test_bad_arguments(check):
    """A clear error names what is missing."""
    with pytest.raises(TypeError, match=f"{check.__name__}.. needs the name of a lock"):
        check()
    with pytest.raises(ValueError, match="name"):
        check("")
