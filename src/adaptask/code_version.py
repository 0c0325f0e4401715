"""The version of a class of others: results of other code are not taken for those of this code."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType


def code_version(places: Iterable[tuple[str, str]]) -> str | None:
    """Return what identifies the code of a class, given as modules with its name in each.

    Of a module the class counts, and what it uses there: functions, constants, imports. Comments,
    docstrings and the rest of the module are left out: they change no run. Modules that it imports
    are not followed. None for classes of this package, and without a file.
    """
    code = [text for place in sorted(places) if (text := _code_of(*place)) is not None]
    return hashlib.sha256("\n".join(code).encode()).hexdigest()[:16] if code else None


def _code_of(module: str, name: str) -> str | None:
    """Return the code of a class, with what it uses of its module, without comments."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or module.partition(".")[0] == "adaptask":
        return None
    try:
        content = Path(file).read_bytes()
    except OSError:
        return None
    try:
        rest = [part for statement in ast.parse(content).body for part in _bindings(statement)]
    except (SyntaxError, ValueError):  # not Python, such as a compiled extension
        return content.hex()
    used, code = {name.partition(".")[0]}, list[str]()
    while chosen := [part for part in rest if part[0] & used]:
        rest = [part for part in rest if part not in chosen]
        for _, statement in chosen:
            tree = ast.fix_missing_locations(ast.Module([statement], type_ignores=[]))
            used |= _names_in(compile(tree, file, "exec", dont_inherit=True))
            code.append(ast.unparse(_WithoutDocstrings().visit(statement)))
    return "\n".join(sorted(code)) or content.hex()


def _bindings(statement: ast.stmt) -> Iterator[tuple[set[str], ast.stmt]]:
    """Yield the names that a statement of a module gives a value or changes, and the statement."""
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield {statement.name}, statement
    elif isinstance(statement, ast.Import):
        for alias in statement.names:  # one more name on the line changes nothing for the others
            yield {alias.asname or alias.name.partition(".")[0]}, ast.Import([alias])
    elif isinstance(statement, ast.ImportFrom):
        for alias in statement.names:
            one = ast.ImportFrom(statement.module, [alias], statement.level)
            yield {alias.asname or alias.name}, one
    elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        nodes = (node for target in targets for node in ast.walk(target))
        yield {node.id for node in nodes if isinstance(node, ast.Name)}, statement
    elif not isinstance(statement, ast.Expr):  # such as `if` and `try`
        inner = (node for node in ast.walk(statement) if isinstance(node, ast.stmt))
        parts = (part for node in inner if node is not statement for part in _bindings(node))
        yield {name for names, _ in parts for name in names}, statement


def _names_in(code: CodeType) -> set[str]:
    """Return the global names that compiled code uses, and those of attributes."""
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    return {*code.co_names}.union(*map(_names_in, inner))


class _WithoutDocstrings(ast.NodeTransformer):
    """Removes strings that stand alone."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else node
