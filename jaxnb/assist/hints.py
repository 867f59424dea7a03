"""Pure: what to type instead, where a cell of the notebook lacks what the processes have."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from jaxnb.labels import START_IMPORTS, plural

_TOO_FEW = re.compile(r"Number of devices (\d+) must be >= the product of mesh_shape")


def hint(
    error: BaseException | None, names: Callable[[], Collection[str]], devices: Callable[[], int]
) -> str:
    """Returns what to say of an error of a cell that ran in the notebook; mostly nothing.

    Args:
        error: What the cell has raised.
        names: Returns the names of variables on the processes.
        devices: Returns how many devices these have.
    """
    if type(error) is NameError and error.name and error.name in names():
        statement = START_IMPORTS.get(error.name)
        or_else = (
            f"import it here: `{statement}`"
            if statement
            else f"type `%spmd_pull {error.name}` to bring it here"
        )
        return (
            f"`{error.name}` is on the processes, and this cell ran in the notebook. Put `%%spmd` "
            f"on its first line, or {or_else}."
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
