"""Names of values on the processes: ``"x"``, ``"state.opt['mu']"``, ``"x[..., :3]"``."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jaxnb.errors import UsageError

_CONSTANTS = (int, float, str, bytes, type(None), type(...))


@dataclass(frozen=True, slots=True)
class Step:
    """One attribute or subscript.

    Attributes:
        kind: ``"attribute"`` or ``"subscript"``.
        key: The attribute's name, or what stands between the brackets.
    """

    kind: Literal["attribute", "subscript"]
    key: Any

    @property
    def slices(self) -> bool:
        """Whether it is a basic index of an array: integers, slices, ``...`` and None."""
        keys = self.key if isinstance(self.key, tuple) else (self.key,)
        return self.kind == "subscript" and all(
            isinstance(k, int | slice | type(...) | None) and not isinstance(k, bool) for k in keys
        )


@dataclass(frozen=True, slots=True)
class Path:
    """Where a value is found.

    Attributes:
        text: As the user wrote it.
        name: The variable.
        steps: From there to the value.
        texts: What each step leads to, as text; the variable first.
    """

    text: str
    name: str
    steps: tuple[Step, ...]
    texts: tuple[str, ...]

    def without(self, count: int) -> str:
        """Returns the path without its last ``count`` steps."""
        return self.texts[len(self.steps) - count]

    def last_keys(self, count: int) -> list[Any]:
        """Returns what stands in the path's last ``count`` subscripts."""
        return [step.key for step in self.steps[len(self.steps) - count :]]


_FOR_AN_EXPRESSION = (
    "Nothing was moved. For the value of an expression type `spmd.run({text}).value`."
)


def parse_path(text: str, instead: str = "") -> Path:
    """Reads a path.

    Args:
        text: The path.
        instead: What to do where it is none; by default what pulls the value of an expression.

    Raises:
        UsageError: It is not a name with attributes and literal subscripts. What computes
            something is left to cells: processes that are out of step could not take part.
    """
    if not isinstance(text, str):
        raise UsageError(f"Names on the processes are text, as in 'x', not {text!r}.")
    try:
        node: ast.expr = ast.parse(text.strip(), mode="eval").body
        steps: list[Step] = []
        texts = [ast.unparse(node)]
        while not isinstance(node, ast.Name):
            node, step = _step(node)
            steps.append(step)
            texts.append(ast.unparse(node))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise UsageError(
            f"{text!r} is not a name, or a name with attributes and literal subscripts such as "
            "`x`, `state.opt['mu']` or `x[..., :3]`. "
            + (instead or _FOR_AN_EXPRESSION.format(text=repr(text)))
        ) from None
    return Path(text.strip(), node.id, tuple(reversed(steps)), tuple(reversed(texts)))


def _step(node: ast.expr) -> tuple[ast.expr, Step]:
    if isinstance(node, ast.Attribute):
        return node.value, Step("attribute", node.attr)
    if isinstance(node, ast.Subscript):
        return node.value, Step("subscript", _key(node.slice))
    raise ValueError


def _key(node: ast.expr) -> Any:
    if isinstance(node, ast.Tuple):
        return tuple(_key(element) for element in node.elts)
    if isinstance(node, ast.Slice):
        return slice(*(part and ast.literal_eval(part) for part in _parts(node)))
    value = ast.literal_eval(node)
    if not isinstance(value, _CONSTANTS):
        raise ValueError
    return value


def _parts(node: ast.Slice) -> Sequence[ast.expr | None]:
    return node.lower, node.upper, node.step
