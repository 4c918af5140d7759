"""How a broken variant is made: a function that behaves otherwise, while a block runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from tests.simulation.checker import Violation
from tests.simulation.kinds import EVERYWHERE, play
from tests.support.replays import note_broken


@dataclass(frozen=True, slots=True)
class Patch:
    """The function ``name`` of ``owner`` becomes what ``make`` returns for it."""

    owner: Any
    name: str
    make: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A broken rule.

    Attributes:
        does: what the variant does wrong, a sentence for a reader of the docs.
        profile: the kind of worlds that shows it.
        worlds: in how many of them it must be caught at the latest.
        real: the test that fails where the real code breaks the rule, if only what stands for
            that in the worlds is edited.
    """

    name: str
    does: str
    profile: str
    worlds: int
    edits: tuple[Patch, ...]
    real: str = ""

    @property
    def edited(self) -> tuple[str, ...]:
        """The modules of the package in which it is broken; none: only the simulation is."""
        modules = (getattr(edit.owner, "__module__", edit.owner) for edit in self.edits)
        names = (each if isinstance(each, str) else each.__name__ for each in modules)
        ours = (name.partition("django_redlock.")[2] for name in names)
        return tuple(dict.fromkeys(filter(None, ours)))


def mutant(
    name: str, does: str, where: str, worlds: int, *edits: tuple[Any, ...], real: str = ""
) -> Mutant:
    """A mutant, with its patches as plain tuples."""
    return Mutant(name, does, where, worlds, tuple(Patch(*each) for each in edits), real)


def broken(mutant: Mutant) -> AbstractContextManager[None]:
    """Run the block with a broken rule."""
    return with_edits(*mutant.edits)


@contextmanager
def with_edits(*changes: Patch) -> Iterator[None]:
    """Run the block with the changed functions in the places of the real ones."""
    with ExitStack() as stack:
        for each in changes:
            original = vars(each.owner)[each.name]
            setattr(each.owner, each.name, each.make(original))
            note_broken(each.name)
            stack.callback(setattr, each.owner, each.name, original)
        yield


def hunt(mutant: Mutant, *, worlds: int, first: int = 0) -> tuple[int, Violation] | None:
    """After how many worlds the mutant was caught, and how; None: it was not."""
    with broken(mutant):
        for count in range(1, worlds + 1):
            try:
                play(first + count - 1, EVERYWHERE[mutant.profile])
            except Violation as violation:
                return count, violation
    return None
