"""Mutants of a module: what can be changed in it, where a change is, and how it is put in."""

from __future__ import annotations

import ast
import gc
import hashlib
import importlib
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple, TypeAlias

Place: TypeAlias = ast.expr | ast.stmt
Key: TypeAlias = tuple[str, str, int]  # of a function: file, qualified name, first line
Live: TypeAlias = dict[Key, list[FunctionType]]

OTHER: Final[dict[type[ast.AST], type[Any]]] = {
    one: other
    for pair in (
        *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot)),
        *((ast.In, ast.NotIn), (ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.Div)),
    )
    for one, other in (pair, pair[::-1])
}
LEFT_OUT: Final = {"annotation", "returns", "decorator_list", "type_params"}


class Mutant(NamedTuple):
    """One change: an expression or a statement of a function, and what stands there instead.

    The text says what is changed. Line and column only choose among equal texts: the nearest one
    is meant, for the lines above may have changed since.
    """

    file: str
    function: str
    line: int
    end: int
    column: int
    kind: str
    before: str
    after: str

    @classmethod
    def of(cls, row: dict[str, Any]) -> Mutant:
        """Return the mutant of a recorded row; by hand: file, line, before, after."""
        older = {"before": row.get("old"), "after": row.get("new")}
        absent = {"function": "", "end": row["line"], "column": 0, "kind": "by hand"}
        row = absent | older | row
        row |= {text: _usual(row[text]) for text in ("before", "after")}
        return cls(*(row[field] for field in cls._fields))

    def __str__(self) -> str:
        """Return the place as an editor opens it, and the change."""
        texts = " → ".join(" ".join(each.split()) for each in (self.before, self.after))
        return f"{self.file}:{self.line} {texts}"


def folder(file: str) -> str:
    """Return the folder of the package that a file is in."""
    return "/".join(file.split("/")[:-1][:2])


def drawn(sources: dict[str, str]) -> list[Mutant]:
    """Return every mutant, in an order whose beginning has the share of each folder.

    The order is random, and the sources are the seed.
    """
    whole = "\0".join(f"{file}\0{sources[file]}" for file in sorted(sources))
    chance = random.Random(hashlib.sha256(whole.encode()).digest())  # noqa: S311  # no secret
    folders: dict[str, list[Mutant]] = defaultdict(list)
    for file in sorted(sources):
        folders[folder(file)] += mutants_of(file, sources[file])
    placed = []
    for found in folders.values():
        chance.shuffle(found)
        placed += [((n + chance.random()) / len(found), each) for n, each in enumerate(found)]
    return [each for _, each in sorted(placed)]


def mutants_of(file: str, source: str) -> Iterator[Mutant]:
    """Yield every mutant of a module."""
    for function, node in _inside(ast.parse(source)):
        for kind, place, after in _changes(node):
            yield Mutant(file, function, *_span(place), kind, ast.unparse(place), after)


def _span(place: Place) -> tuple[int, int, int]:
    return place.lineno, place.end_lineno or place.lineno, place.col_offset


def _inside(
    node: ast.AST, function: str = "", *, runs: bool = False
) -> Iterator[tuple[str, ast.AST]]:
    """Yield the nodes that run when a function is called, with the name of the function."""
    if runs:
        yield function, node
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        function = f"{function}.{node.name}".removeprefix(".")
    for field, value in ast.iter_fields(node):
        if field not in LEFT_OUT and not isinstance(node, ast.JoinedStr):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, ast.arguments):
                    yield from _inside(child, function, runs=runs or is_function)


def _changes(node: ast.AST) -> Iterator[tuple[str, Place, str]]:  # noqa: C901  # a case a kind
    """Yield what can be changed at a node: the kind, what is replaced, and the new text."""
    match node:
        case ast.Compare(left, [operator], others) if type(operator) in OTHER:
            yield "compare", node, ast.unparse(ast.Compare(left, [OTHER[type(operator)]()], others))
        case ast.BoolOp(operator, values):
            yield "and/or", node, ast.unparse(ast.BoolOp(OTHER[type(operator)](), values))
        case ast.BinOp(left, operator, right) if type(operator) in OTHER:
            if not isinstance(left, ast.Constant | ast.JoinedStr):  # of a text
                new = ast.BinOp(left, OTHER[type(operator)](), right)
                yield "arithmetic", node, ast.unparse(new)
        case ast.UnaryOp(ast.Not(), operand):
            yield "not", node, ast.unparse(operand)
        case ast.If(test) | ast.IfExp(test):
            yield "if", test, "True"
            yield "if", test, "False"
        case ast.Constant(bool(value)):
            yield "constant", node, repr(not value)
        case ast.Constant(int(value) | float(value)):
            yield "constant", node, repr(0 if value == 1 else value + 1)
        case ast.Return(ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "return", value, "None"
        case ast.Expr(ast.Call() | ast.Await() as value):
            yield "drop", value, "None"
        case ast.AugAssign() | ast.Delete() | ast.Raise():
            yield "drop", node, "pass"
        case ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield "drop", node, "pass"


def _usual(text: str) -> str:
    try:
        return ast.unparse(_parsed(text))
    except SyntaxError:  # it was cut off
        return text


def _parsed(text: str) -> Place:
    statement = ast.parse(text).body[0]
    return statement.value if isinstance(statement, ast.Expr) else statement


def _found(tree: ast.Module, mutant: Mutant) -> tuple[str, Place] | None:
    try:
        sought = _parsed(mutant.before)
    except SyntaxError:
        return None
    text = ast.unparse(sought)

    def distance(found: tuple[str, Place]) -> tuple[bool, int, int]:
        function, place = found
        by = place.lineno - mutant.line, place.col_offset - mutant.column
        return function != mutant.function, abs(by[0]), abs(by[1])

    same = [
        (function, node)
        for function, node in _inside(tree)
        if isinstance(node, type(sought))
        and isinstance(getattr(node, "ctx", None), ast.Load | None)  # not what is assigned to
        and ast.unparse(node) == text
    ]
    return min(same, key=distance) if same else None


def moved(mutant: Mutant, tree: ast.Module) -> Mutant | None:
    """Return a mutant where its text is now; None: it is gone."""
    found = _found(tree, mutant)
    if found is None:
        return None
    line, end, column = _span(found[1])
    return mutant._replace(function=found[0], line=line, end=end, column=column)


class _Put(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else super().visit(node)


def changed(path: Path, mutant: Mutant) -> dict[Key, CodeType]:
    """Return the new code of the functions that a mutant changes: its own and those around it."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    found = _found(tree, mutant)
    if found is None:
        return {}
    place, new = found[1], _parsed(mutant.after)
    for each in ast.walk(new):
        ast.copy_location(each, place)
    mutated = compile(_Put(place, new).visit(tree), str(path), "exec", dont_inherit=True)
    old = dict(_codes(compile(source, str(path), "exec", dont_inherit=True)))
    return {key: code for key, code in _codes(mutated) if key in old and code != old[key]}


def _codes(code: CodeType) -> Iterator[tuple[Key, CodeType]]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield (each.co_filename, each.co_qualname, each.co_firstlineno), each
            yield from _codes(each)


def live_functions(package: Path) -> Live:
    """Return all functions of a package that this process has, by their place."""
    gc.unfreeze()
    found = defaultdict(list)
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename.startswith(f"{package}/"):
            code = each.__code__
            found[code.co_filename, code.co_qualname, code.co_firstlineno].append(each)
    gc.freeze()
    return found


def put_in(mutant: Mutant, root: Path, live: Live) -> str:
    """Give the live functions the code of a mutant; return why that is impossible, or ""."""
    module = mutant.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    if module not in sys.modules:
        importlib.import_module(module)
        live = live_functions(root / mutant.file.split("/")[0])
    put = 0
    for key, code in changed(root / mutant.file, mutant).items():
        for function in live.get(key, ()):
            try:
                function.__code__ = code
            except ValueError as error:  # another number of variables from around it
                return str(error)
            put += 1
    return "" if put else "no function has this text"
