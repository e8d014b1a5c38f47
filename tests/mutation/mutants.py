"""Mutants of the package's functions: one small change of the syntax tree each.

Nothing is written to a file, and no text of the source is repeated anywhere, so that a rename breaks nothing.
"""

from __future__ import annotations
import __future__

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Final

COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
SHOWN: Final = 60
"""Characters of a changed expression that a mutant's name shows."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one function.

    Attributes:
        file: The module's file.
        function: The function's qualified name in its module.
        line: The line of the change.
        change: The change, in words.
        code: The code of the changed function.
    """

    file: Path
    function: str
    line: int
    change: str
    code: CodeType


def mutants_of(file: Path) -> Iterator[Mutant]:
    """Yield the mutants of a module's functions and methods; an inner function is part of the outer one."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for name, function in _functions(tree.body, ""):
        for line, change in _changes(function):
            module = compile(tree, str(file), "exec", __future__.annotations.compiler_flag, dont_inherit=True)
            if (code := _code(module, name)) is not None:
                yield Mutant(file, name, line, change, code)


def _functions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")


def _code(code: CodeType, name: str) -> CodeType | None:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            if inner.co_qualname == name:
                return inner
            if (found := _code(inner, name)) is not None:
                return found
    return None


# The changes. Each is made in the tree, yielded, and undone.


def _changes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[int, str]]:
    nodes = [node for statement in function.body for node in ast.walk(statement)]
    # Where a test is always true, or always false, its opposite shows nothing more.
    tested = {id(node.test) for node in nodes if isinstance(node, ast.If | ast.While | ast.IfExp)}
    for node in nodes:
        match node:
            case ast.If() | ast.While() | ast.IfExp() | ast.BoolOp() | ast.comprehension():
                yield from _decided_otherwise(node)
            case ast.Compare(ops=[op]) if type(op) in COMPARISONS and id(node) not in tested:
                yield from _written_otherwise(node, "ops", [COMPARISONS[type(op)]()])
            case ast.BinOp(op=op) if type(op) in OPERATORS:
                yield from _written_otherwise(node, "op", OPERATORS[type(op)]())
            case ast.Call(func=ast.Name(id="max" | "min" as name), args=[_, _, *_]):
                other = ast.Name("min" if name == "max" else "max", ast.Load())
                yield from _written_otherwise(node, "func", other)
            case ast.Call(func=ast.Name(id="replace"), args=[_], keywords=keywords):
                for place, keyword in enumerate(keywords):
                    with _set(node, "keywords", keywords[:place] + keywords[place + 1 :]):
                        yield keyword.value.lineno, f"`{keyword.arg}` is not replaced"
            case ast.Expr(value=ast.Call() as call):
                with _set(node, "value", ast.Constant(None)):
                    yield node.lineno, f"without `{_text(call)}`"
            case _:
                pass


def _decided_otherwise(
    node: ast.If | ast.While | ast.IfExp | ast.BoolOp | ast.comprehension,
) -> Iterator[tuple[int, str]]:
    match node:
        case ast.BoolOp(values=values):
            for place in range(len(values)):
                left = values[:place] + values[place + 1 :]
                yield from _written_otherwise(node, "values", left if len(left) > 1 else left * 2)
        case ast.comprehension(ifs=ifs):
            for place, test in enumerate(ifs):
                with _set(node, "ifs", ifs[:place] + ifs[place + 1 :]):
                    yield test.lineno, f"without the filter `{_text(test)}`"
        case _:
            text = _text(node.test)
            # A loop that is always true would only run into the time limit.
            for value in (False,) if isinstance(node, ast.While) else (True, False):
                with _set(node, "test", ast.Constant(value)):
                    yield node.lineno, f"`{text}` is always {value}"


def _written_otherwise(node: ast.expr, part: str, value: object) -> Iterator[tuple[int, str]]:
    text = _text(node)
    with _set(node, part, value):
        yield node.lineno, f"`{text}` becomes `{_text(node)}`"


@contextmanager
def _set(node: ast.AST, field: str, value: object) -> Iterator[None]:
    old = getattr(node, field)
    setattr(node, field, value)
    ast.fix_missing_locations(node)
    try:
        yield
    finally:
        setattr(node, field, old)


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
