"""The options of decorators, of their signatures and docstrings; nothing is imported for that."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import Any, Final, NamedTuple

from . import markdown
from .markdown import ROOT, code, of_docstring

PACKAGE: Final = ROOT / "django_redlock"
# What has options: its name on the page, the file, and the function in it.
SOURCES: Final = {
    "redlock": ("locks/template.py", "LockTemplate.__call__"),
    "single_flight": ("views/decorator.py", "single_flight"),
    "rest_framework.single_flight": ("views/rest_framework.py", "single_flight"),
    "idempotent": ("idempotency/decorator.py", "idempotent"),
    "rest_framework.idempotent": ("idempotency/rest_framework.py", "idempotent"),
    "idempotent_work": ("idempotency/work.py", "idempotent_work"),
    "locked_task": ("celery/task.py", "locked_task"),
    "tasks.locked_task": ("tasks/task.py", "locked_task"),
    "once": ("locks/lock.py", "Lock.once"),
    "leader": ("locks/lock.py", "Lock.leader"),
    "atomic": ("locks/lock.py", "Lock.atomic"),
    "fenced": ("fencing/claim.py", "fenced"),
}
# What several have: a class whose docstring describes it, and the function that has the defaults.
SHARED: Final = {"TaskOptions": ("work/options.py", "work/plan.py", "Plan.__init__")}
# Those whose options a reader compares.
COMPARED: Final = ("redlock", "single_flight", "idempotent", "locked_task")
LONGEST: Final = 28  # characters of a default in the table of all
ARGUMENT: Final = re.compile(r"^ {4}(\w[\w, ]*): ", re.MULTILINE)
MEANT: Final = re.compile(r" ?\bNone: ([^.]{1,50})\.")  # what stands for None, if it is short
VALUE: Final = re.compile(r"(?:the alias's )?([A-Z_]+|\d+|\"\w+\")")  # a setting, or as in code


class Option(NamedTuple):
    """One option, with its default as the code writes it; "": it must be given."""

    name: str
    default: str
    about: str

    def readable(self) -> Option:
        """Return it with what the code does by default, which no reader looks for behind None."""
        meant = MEANT.search(self.about) if self.default == "None" else None
        if meant is None:
            return self._replace(default=code(self.default) if self.default else "")
        value = VALUE.fullmatch(meant[1])
        default = code(value[1]) if value else meant[1]
        return Option(self.name, default, MEANT.sub("", self.about).strip())


def table(name: str) -> str:
    """Return the table of the options of one of them."""
    rows = [
        (code(each.name), each.default, each.about) for each in map(Option.readable, options(name))
    ]
    return markdown.table(("Option", "Default", "What it does"), rows)


def overview() -> str:
    """Return which decorator has which option, with its default."""
    every = list(dict.fromkeys(each.name for name in COMPARED for each in options(name)))
    rows = []
    for option in every:
        row = [code(option)]
        for name in COMPARED:
            found = [each for each in options(name) if each.name == option]
            row.append(_brief(found[0].readable().default) if found else "")
        if sum(map(bool, row)) > 2:  # noqa: PLR2004 - its name, and one that has it
            rows.append(row)
    return markdown.table(("Option", *(code(each) for each in COMPARED)), rows)


def _brief(default: str) -> str:
    return "see below" if len(default) > LONGEST else default or "…"


@cache
def options(name: str) -> tuple[Option, ...]:
    """Return the options of one of them.

    Raises:
        ValueError: it is unknown, or its docstring and its signature differ.
    """
    if name not in SOURCES:
        msg = f"no decorator {name!r}; known are: {', '.join(SOURCES)}"
        raise ValueError(msg)
    path, place = SOURCES[name]
    tree = _parsed(path)
    function = _defined(tree, place)
    about = arguments(ast.get_docstring(function) or "")
    given = function.args
    defaults = _defaults(given)
    constants = _constants(tree) | _imported(tree)
    for shared in SHARED.keys() & _words(given.kwarg):
        home, maker, init = SHARED[shared]
        texts = arguments(ast.get_docstring(_defined(_parsed(home), shared)) or "")
        every = _defaults(_defined(_parsed(maker), init).args)
        defaults |= {each: every[each] for each in texts}
        # What this one says of such an option comes behind what is said of it for all.
        about |= {each: f"{text} {about.get(each, '')}".strip() for each, text in texts.items()}
    left_out = {"self", "first", "view"} - about.keys()
    names = [each for each in defaults if each not in left_out]
    if given.kwarg and given.kwarg.arg in about:
        names.append(given.kwarg.arg)
    if set(names) != about.keys():
        msg = f"{name}: the signature has {names}, and the docstring {list(about)}"
        raise ValueError(msg)
    return tuple(
        Option(each, _default(defaults.get(each), constants), about[each]) for each in names
    )


def arguments(docstring: str) -> dict[str, str]:
    """Return what a docstring says of each argument, as Markdown."""
    _, _, below = docstring.partition("Args:\n")
    section = re.split(r"^\S", below, maxsplit=1, flags=re.MULTILINE)[0]
    parts = ARGUMENT.split(section)[1:]
    return {
        name: _sentence(of_docstring(text))
        for names, text in zip(parts[::2], parts[1::2], strict=True)
        for name in names.split(", ")
    }


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _parsed(path: str) -> ast.Module:
    return ast.parse((PACKAGE / path).read_text(encoding="utf-8"))


def _defaults(given: ast.arguments) -> dict[str, ast.expr | None]:
    """Return the default of each argument; None: it must be given."""
    ordered = [*given.posonlyargs, *given.args]
    plain = [None] * (len(ordered) - len(given.defaults)) + list(given.defaults)
    pairs = [*zip(ordered, plain, strict=True)]
    pairs += zip(given.kwonlyargs, given.kw_defaults, strict=True)
    return {each.arg: value for each, value in pairs}


def _words(kwarg: ast.arg | None) -> set[str]:
    """Return the names in the annotation of the keyword arguments."""
    annotation = kwarg and kwarg.annotation
    nodes = ast.walk(annotation) if annotation else ()
    return {each.id for each in nodes if isinstance(each, ast.Name)}


def _defined(tree: ast.Module, place: str) -> Any:
    """Return the last definition of this name, which is no overload."""
    found: ast.AST = tree
    for name in place.split("."):
        found = [
            each
            for each in getattr(found, "body", [])
            if isinstance(each, ast.ClassDef | ast.FunctionDef) and each.name == name
        ][-1]
    return found


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    return {
        each.target.id: each.value
        for each in tree.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.value
    }


def _imported(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the constants that a module takes from others of its package."""
    found: dict[str, ast.expr] = {}
    for each in tree.body:
        if isinstance(each, ast.ImportFrom) and each.module:
            path = each.module.removeprefix("django_redlock.").replace(".", "/")
            for folder in ("views", "idempotency", ""):
                file = PACKAGE / folder / f"{path}.py"
                if file.is_file() and (each.level or each.module.startswith("django_redlock")):
                    made = _constants(ast.parse(file.read_text(encoding="utf-8")))
                    taken = made.keys() & {name.name for name in each.names}
                    found |= {name: made[name] for name in taken}
    return found


def _default(value: ast.expr | None, constants: dict[str, ast.expr]) -> str:
    if value is None:
        return ""
    if isinstance(value, ast.Name):
        value = constants.get(value.id, value)
    return ast.unparse(value).replace("'", '"')
