"""Which programs declare results replicated that JAX has not checked to be so.

``check_vma=False`` takes the check from a ``shard_map``; a ``pmap`` with ``out_axes=None`` never
has it. The compiled program does not show it, so it is noted where JAX lowers a ``shard_map``.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

_AXES = "jaxnb: axes of unchecked replicas"


def note_unchecked_results() -> str:
    """Has executables remember over which mesh axes they declare results replicated, unchecked.

    Returns:
        Why that is not possible where this JAX lacks a name; then :func:`unchecked_axes` returns
        nothing. Empty if it was done.
    """
    try:
        from jax._src import shard_map
        from jax._src.interpreters import mlir

        lower = shard_map._shard_map_lowering
        names = inspect.signature(lower).parameters
        mlir.ModuleContext.add_keepalive  # noqa: B018
        settings_known = mlir.LoweringParameters.__annotations__
    except (ImportError, AttributeError) as error:
        return str(error)
    if not {"mesh", "out_specs", "check_vma", "newly_manual_axes"} <= names.keys():
        return "_shard_map_lowering takes no out_specs, check_vma or newly_manual_axes"
    if "for_export" not in settings_known:
        return "mlir.LoweringParameters has no for_export"

    @functools.wraps(lower)
    def noted(context: Any, *nodes: Any, **settings: Any) -> Any:
        module = context.module_context
        # What keeps anything alive cannot be exported.
        if not (settings["check_vma"] or module.lowering_parameters.for_export):
            mesh, manual = settings["mesh"], settings["newly_manual_axes"]
            split = [axis for axis in mesh.axis_names if axis in manual and mesh.shape[axis] > 1]
            declared = [_axes_in(spec) for spec in settings["out_specs"]]
            if axes := [axis for axis in split if any(axis not in each for each in declared)]:
                # Plain data: a list of what lives as long as the executable, and is saved with it.
                module.add_keepalive((_AXES, *map(str, axes)))
        return lower(context, *nodes, **settings)

    mlir.register_lowering(shard_map.shard_map_p, noted)
    return ""


def _axes_in(spec: Any) -> set[Any]:
    found = set(getattr(spec, "unreduced", ()))
    for each in spec:
        found.update(each if isinstance(each, tuple) else (each,))
    return found


def unchecked_axes(executable: Any) -> tuple[str, ...]:
    """Returns over which mesh axes a program declares results replicated that nobody has checked.

    What :func:`note_unchecked_results` has had it remember; empty for most programs.
    """
    noted = [
        e[1:] for e in executable.keepalive or () if isinstance(e, tuple) and e[:1] == (_AXES,)
    ]
    return tuple(dict.fromkeys(axis for axes in noted for axis in axes))
