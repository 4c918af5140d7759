"""How a broken variant is made: functions that behave otherwise, while a block runs.

A patch puts another function in the place of one. An edit replaces a text in the source of a
function, which must be there exactly once: a mutant that no longer fits fails loudly.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from tests.simulation.checker import Violation
from tests.simulation.kinds import EVERYWHERE, play
from tests.support.replays import note_broken


@dataclass(frozen=True, slots=True)
class Edit:
    """In the function ``name`` of ``owner``, ``old`` becomes ``new``."""

    owner: Any
    name: str
    old: str
    new: str


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
def with_edits(*changes: Edit | Patch) -> Iterator[None]:
    """Run the block with the changed functions in the places of the real ones."""
    sources: dict[tuple[Any, str], str] = {}
    for edit in changes:
        if isinstance(edit, Patch):
            continue
        place = edit.owner, edit.name
        source = sources.get(place) or _source(vars(edit.owner)[edit.name])
        if source.count(edit.old) != 1:
            raise LookupError(f"{edit.name} has {source.count(edit.old)} times: {edit.old}")
        sources[place] = source.replace(edit.old, edit.new)
    with ExitStack() as stack:
        for (owner, name), source in sources.items():
            original = vars(owner)[name]
            setattr(owner, name, _compiled(name, source, original))
            note_broken(name)
            stack.callback(setattr, owner, name, original)
        for each in changes:
            if isinstance(each, Patch):
                original = vars(each.owner)[each.name]
                setattr(each.owner, each.name, each.make(original))
                note_broken(each.name)
                stack.callback(setattr, each.owner, each.name, original)
        yield


def _function(original: Any) -> Any:
    return original.fget if isinstance(original, property) else original


def _source(original: Any) -> str:
    return textwrap.dedent(inspect.getsource(_function(original)))


def _compiled(name: str, source: str, original: Any) -> Any:
    code = compile(source, f"<mutant of {name}>", "exec")  # annotations as in this module
    made: dict[str, Any] = {}
    exec(code, vars(sys.modules[_function(original).__module__]), made)  # noqa: S102 - our source
    return made[name]


def hunt(mutant: Mutant, *, worlds: int, first: int = 0) -> tuple[int, Violation] | None:
    """After how many worlds the mutant was caught, and how; None: it was not."""
    with broken(mutant):
        for count in range(1, worlds + 1):
            try:
                play(first + count - 1, EVERYWHERE[mutant.profile])
            except Violation as violation:
                return count, violation
    return None
