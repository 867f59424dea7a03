"""A JAX whose private names have moved, or changed their shape; patched in real processes."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

CUSTOMIZE = """
import sys
if "forkserver" in " ".join(sys.orig_argv):
    sys.path.insert(0, {tests!r})
    import moved_names
    moved_names.change({case!r})
"""
"""A ``sitecustomize`` that changes JAX before jaxnb's processes import it."""


class _Undo:
    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any]] = []

    def set(self, home: Any, name: str, value: Any) -> None:
        self._done.append((home, name, home.__dict__[name]))
        setattr(home, name, value)

    def delete(self, home: Any, name: str) -> None:
        self._done.append((home, name, home.__dict__[name]))
        delattr(home, name)

    def undo(self) -> None:
        while self._done:
            setattr(*self._done.pop())


def _no_text(undo: _Undo, only: int | None = None) -> None:
    import jax
    from jax._src.lib import hlo

    def text(*arguments: Any, _text: Any = hlo.HloModule.to_string) -> str:
        return "moved" if only in (None, jax.process_index()) else _text(*arguments)

    undo.set(hlo.HloModule, "to_string", text)


def _another_callable(undo: _Undo) -> None:
    from jax._src.interpreters import pxla

    old = pxla.MeshExecutable.__dict__["unsafe_call"]
    undo.set(pxla.MeshExecutable, "unsafe_call", property(lambda self: _Wrapped(old.fget(self))))


class _Wrapped:
    def __init__(self, call: Any) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)


def _no_options(undo: _Undo) -> None:
    from jax._src.interpreters import pxla

    old = pxla.UnloadedMeshExecutable.from_hlo

    def from_hlo(*arguments: Any, **settings: Any) -> Any:
        return old(*arguments, **settings)

    undo.set(pxla.UnloadedMeshExecutable, "from_hlo", staticmethod(from_hlo))


def _home(path: str) -> Any:
    module, _, name = path.partition(":")
    found = importlib.import_module(module)
    return getattr(found, name) if name else found


CASES: dict[str, Callable[..., None]] = {
    "untouched": lambda undo: None,
    "no text on process 1": lambda undo: _no_text(undo, 1),
    "no text": _no_text,
    "another callable": _another_callable,
    "no options": _no_options,
    "no canonical": lambda undo: undo.delete(
        _home("jax._src.lib").hlo.HloPrintOptions, "canonical"
    ),
}


def change(case: str) -> None:
    """Changes JAX for good in this process."""
    CASES[case](_Undo())


def try_all() -> None:
    """Tries the recorder on each; prints what it says, and whether JAX works afterwards."""
    import jax
    import jax.numpy as jnp

    from jaxnb.arrays.process_replicas import Replicas
    from jaxnb.compat import jax_dispatch as internals
    from jaxnb.lockstep import process_recorder
    from jaxnb.lockstep.process_cell import InLockstep
    from jaxnb.lockstep.process_recorder import Recorder
    from jaxnb.pitfalls.process_pitfalls import NanWatch

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    over = jax.sharding.NamedSharding(mesh, jax.P("d"))
    ones = jax.device_put(jnp.ones(2), over)

    def total_of(x: Any) -> Any:
        return x.sum()

    # As if one of the devices were another process's.
    internals.executable_devices = lambda executable: [
        SimpleNamespace(process_index=i) for i in (0, 1)
    ]
    for case, do in CASES.items():
        undo, said = _Undo(), "works"
        do(undo)
        try:
            recorder = Recorder(0, InLockstep(0, 1, Path), NanWatch(0), Replicas(0))
            jitted = jax.jit(total_of)
            ahead: list[Any] = []

            def aot(x: Any, jitted: Any = jitted, ahead: list[Any] = ahead) -> Any:
                ahead[:] = ahead or [jitted.lower(x).compile()]
                return ahead[0](x)

            calls = [jitted] * (process_recorder.CALLS - 2) + [aot] * 2
            total, found = process_recorder.run(
                recorder, calls, lambda: jax.jit(total_of), ones, is_alone=False
            )
            said = f"{float(total)} {len(found)} | {recorder.missing} | {recorder.reduced}"
            said += f" | {float(jax.jit(lambda x: x.sum() + 1)(ones))}"
        except BaseException as error:
            said = f"RAISED {type(error).__name__}: {error}"
        finally:
            with contextlib.suppress(Exception):
                recorder.take_out("")
            undo.undo()
            jax.clear_caches()
        print(f"{case}: {said}")


if __name__ == "__main__":
    try_all()
