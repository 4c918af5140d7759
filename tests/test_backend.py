"""What carries out the steps of the algorithm, by blocking calls and in a task."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from django_redlock.backend import Backend
from django_redlock.core.protocol import Command, Request, Vote
from tests.core.table import LOST, UNSENT, Table


def carried_out(table: Table, ask: Any, *, looped: bool) -> Any:
    """The outcome of an attempt whose requests ``ask`` answers."""

    def asked(request: Request) -> list[Vote]:
        table.effects.append(request)
        votes: list[Vote] = ask(request)
        return votes

    async def aasked(request: Request) -> list[Vote]:
        return asked(request)

    group: Any = SimpleNamespace(ask=asked, aask=aasked)
    backend, steps = Backend("default", group, table.policy), table.acquire(wait=5)
    return asyncio.run(backend.arun(steps)) if looped else backend.run(steps)


@pytest.mark.parametrize("looped", [False, True])
@pytest.mark.parametrize("during", [Command.GRANT, Command.RELEASE])
def test_an_exception_while_asking_is_undone_and_goes_on(during: Command, *, looped: bool) -> None:
    """The algorithm gets it, and says what to undo."""
    table, raised = Table(3), ZeroDivisionError()

    def ask(request: Request) -> list[Vote]:
        if request.command is during and during not in table.commands[:-1]:
            raise raised
        return table.votes(request, LOST)

    with pytest.raises(ZeroDivisionError) as caught:
        carried_out(table, ask, looped=looped)
    assert caught.value is raised
    undone = ["release"] if during is Command.GRANT else ["release", "release"]
    assert table.commands == ["grant", *undone]


@pytest.mark.parametrize("looped", [False, True])
def test_the_outcome_is_returned_after_pauses(*, looped: bool) -> None:
    """Votes go in, and the grant comes out."""
    table, words = Table(3), iter([UNSENT, UNSENT, 5])
    grant = carried_out(table, lambda ask: table.votes(ask, next(words)), looped=looped)
    assert (grant.fence, table.commands) == (5, ["grant"] * 3)
