"""What JAX raises, explained. The exception itself stays as it is."""

from __future__ import annotations

import re
import traceback

from jaxnb.compat.jax_pitfalls import iterates_over_parts
from jaxnb.labels import text_of
from jaxnb.model.pitfalls import Pitfall
from jaxnb.pitfalls.process_moved import ONE_MESH, in_words
from jaxnb.pitfalls.process_words import pitfall

_FETCH = "Fetching value for `jax.Array` that spans non-addressable"
_EXPLICIT, _SET_MESH = "Explicit", "via `jax.set_mesh`"
_DEVICES = re.compile(r"device ids \[([\d, ]+)\]")


def explained(error: BaseException, code_name: str) -> list[Pitfall]:
    """Returns what is to be said of an exception that has left a cell.

    Args:
        error: The exception.
        code_name: The file name of the cell's code.
    """
    text, line = text_of(error), _line_of(error, code_name)
    if (isinstance(error, RuntimeError) and _FETCH in text) or iterates_over_parts(error):
        return [
            pitfall(
                "fetch",
                code_name,
                line,
                "No process holds the whole array, so none can read it, print its values or "
                "iterate over it.",
                "In the notebook: `%spmd_pull x`, or x alone as the last line. In the cell: "
                "`x.addressable_shards` for this process's part, or, on all processes, "
                "`jax.experimental.multihost_utils.process_allgather(x, tiled=True)`.",
            )
        ]
    if "incompatible devices" in text:
        orders = [[int(i) for i in each.split(",")] for each in _DEVICES.findall(text)]
        if len(orders) == 2 and orders[0] != orders[1] and set(orders[0]) == set(orders[1]):
            return [
                pitfall(
                    "device-order",
                    code_name,
                    line,
                    f"The two have the same {len(orders[0])} devices in different order "
                    f"({in_words(orders)}).",
                    ONE_MESH,
                )
            ]
    if type(error).__name__ == "ShardingTypeError" or (_EXPLICIT in text and _SET_MESH in text):
        return [
            pitfall(
                "explicit-axes",
                code_name,
                line,
                "The mesh's axes are Explicit, as `jax.make_mesh` makes them: array types "
                "include their sharding. If JAX cannot derive a result's sharding, you must "
                "specify it.",
                "To have the compiler choose: `jax.make_mesh(shape, names, axis_types=("
                "jax.sharding.AxisType.Auto,) * len(names))`.",
            )
        ]
    return []


def _line_of(error: BaseException, code_name: str) -> int | None:
    line = None
    for frame, number in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename == code_name:
            line = number
    return line
