"""Pure: what to type instead, where a cell of the notebook lacks what the processes have."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from jaxnb.labels import MAGICS, START_IMPORTS, plural, text_of
from jaxnb.options import suggest

_TOO_FEW = re.compile(r"Number of devices (\d+) must be >= the product of mesh_shape")

_NO_MAGIC = re.compile(r"\w+ magic (?:function )?`(%+)(s[mp]\w+)` not found")

_INDENTED = re.compile(r"\s+%%(\w+)")


def magic_hint(error: BaseException | None, code: str) -> str:
    """Returns what to say of a cell whose magic was misspelt or misplaced; mostly nothing.

    Args:
        error: What the cell has raised, or why it could not begin.
        code: The cell.
    """
    found = _INDENTED.match(code)
    if found is not None and found[1] in MAGICS and isinstance(error, SyntaxError):
        return f"`%%{found[1]}` must be the first thing in its cell: remove the blanks before it."
    if (found := _NO_MAGIC.match(text_of(error))) is not None:
        sign, name = found.groups()
        return suggest(sign + name, (sign + each for each in MAGICS)).strip()
    return ""


def hint(
    error: BaseException | None,
    code: str,
    names: Callable[[], Collection[str]],
    devices: Callable[[], int],
) -> str:
    """Returns what to say of an error of a cell that ran in the notebook; mostly nothing.

    Args:
        error: What the cell has raised.
        code: The cell.
        names: Returns the names of variables on the processes.
        devices: Returns how many devices these have.
    """
    if type(error) is NameError and error.name and error.name in names():
        statement = START_IMPORTS.get(error.name)
        or_else = f", or type `%spmd_pull {error.name}` to bring it here"
        if statement:
            or_else = f", or import it here: `{statement}`"
        elif re.search(rf"\b{error.name}\s*\(", code):
            or_else = ""  # a function stays where its devices are
        return (
            f"`{error.name}` is on the processes, and this cell ran in the notebook. Put `%%spmd` "
            f"on its first line{or_else}."
        )
    if type(error).__name__ == "ShardingTypeError":
        return (
            "The mesh's axes are Explicit, as `jax.make_mesh` makes them. To have the compiler "
            "choose shardings, make it with `axis_types=(jax.sharding.AxisType.Auto,)`, one for "
            "each axis."
        )
    if isinstance(error, ValueError) and (found := _TOO_FEW.match(str(error))) is not None:
        here, there = int(found[1]), devices()
        if there > here:
            return (
                f"This cell ran in the notebook, whose own JAX has {plural(here, 'device')}; the "
                f"processes have {there}. Put `%%spmd` on its first line."
            )
    return ""
