"""Where JAX does what is easily overlooked: what its private names tell of it.

Nothing here is on the way of a dispatch: functions are replaced that JAX calls when it traces a
``pmap``, lowers a computation, or moves an array to other devices. Each is replaced by itself:
where this JAX lacks one, what that one tells of is not looked for.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Protocol

from jaxnb.compat.jax_runtime import reporting


@dataclass(slots=True)
class Lowering:
    """A computation that is about to be compiled.

    Attributes:
        name: The function's name.
        source: Where it is defined: ``"step at <cell 3>:5"``.
        file: That file; empty where JAX does not know it.
        types: Of its arguments: ``"float32[8]"``; weak ones begin with ``~``.
    """

    name: str
    source: str
    file: str
    types: tuple[str, ...]


class PitfallHooks(Protocol):
    """What is told. Nothing of it may raise, or compute with JAX."""

    def lowered(self, read: Callable[[], Lowering]) -> None:
        """Takes a computation that a call has lowered; not what ``lower()`` was called for.

        Args:
            read: Returns it. That may raise where this JAX describes it otherwise.
        """

    def traced_pmap(self, devices: Sequence[Any], asked: Sequence[Any] | None) -> None:
        """Takes a ``pmap`` within another transformation, its devices, and those asked for."""

    def gathered(self, value: Any) -> None:
        """Takes a value that ``device_put`` has sent to all processes to compare it."""


def hook_pitfalls(hooks: PitfallHooks) -> dict[str, str]:
    """Has it told in this process.

    Returns:
        For each kind that cannot be told of in this JAX, why. Then nothing was changed there.
    """
    ways: dict[str, Callable[[PitfallHooks], str]] = {
        "recompiled": _hook_lowering,
        "jit-of-pmap": _hook_pmap,
        "device-put": _hook_comparison,
    }
    return {kind: missing for kind, hook in ways.items() if (missing := hook(hooks))}


def _reader(function: Callable[..., Any], *names: str) -> Callable[..., list[Any]]:
    """Returns what reads the named parameters from a call of a function of JAX's.

    Raises:
        AttributeError: It has no such parameters.
    """
    signature = inspect.signature(function)
    if unknown := [name for name in names if name not in signature.parameters]:
        raise AttributeError(f"{function.__name__} has no parameter {unknown[0]}")

    def read(arguments: Sequence[Any], settings: Mapping[str, Any]) -> list[Any]:
        bound = signature.bind(*arguments, **settings).arguments
        return [bound.get(name) for name in names]

    return read


@reporting
def _hook_lowering(hooks: PitfallHooks) -> None:
    from jax._src import stages
    from jax._src.interpreters import pxla

    lower = pxla.lower_sharding_computation
    read = _reader(lower, "closed_jaxpr", "fun_name")
    explicit = stages.Traced.lower.__code__

    def lower_sharding_computation(*arguments: Any, **settings: Any) -> Any:
        __tracebackhide__ = True
        lowered = lower(*arguments, **settings)
        if not _is_within(sys._getframe(1), explicit):
            hooks.lowered(lambda: _lowering(*read(arguments, settings)))
        return lowered

    pxla.lower_sharding_computation = lower_sharding_computation


def _is_within(frame: FrameType | None, code: Any) -> bool:
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False


def _lowering(jaxpr: Any, name: str) -> Lowering:
    info = getattr(jaxpr.jaxpr, "debug_info", None)
    source = str(getattr(info, "func_src_info", name))
    types = tuple(aval.str_short() for aval in jaxpr.in_avals)
    return Lowering(name, source, getattr(info, "func_filename", None) or "", types)


@reporting
def _hook_pmap(hooks: PitfallHooks) -> None:
    from jax._src import pmap

    choose = pmap._get_mesh_devices
    read = _reader(choose, "devices", "trace_state_clean")

    def get_mesh_devices(*arguments: Any, **settings: Any) -> Any:
        __tracebackhide__ = True
        found = choose(*arguments, **settings)
        asked, is_outermost = read(arguments, settings)
        if not is_outermost:
            hooks.traced_pmap(found, asked)
        return found

    pmap._get_mesh_devices = get_mesh_devices


@reporting
def _hook_comparison(hooks: PitfallHooks) -> None:
    from jax._src import dispatch
    from jax.experimental import multihost_utils

    compare = multihost_utils.assert_equal
    caller = dispatch._device_put_sharding_impl.__code__
    if "assert_equal" not in caller.co_names:
        raise AttributeError("device_put does not call assert_equal")

    @functools.wraps(compare)
    def assert_equal(in_tree: Any, *rest: Any, **settings: Any) -> Any:
        __tracebackhide__ = True
        if sys._getframe(1).f_code is caller:
            hooks.gathered(in_tree)  # before it: where values differ, it raises
        return compare(in_tree, *rest, **settings)

    multihost_utils.assert_equal = assert_equal


def iterates_over_parts(error: BaseException) -> bool:
    """Whether it is the AssertionError, without a word, of going through an array not all here.

    False where this JAX has its arrays elsewhere: then it is not explained.
    """
    if not isinstance(error, AssertionError) or str(error):
        return False
    last = _last_frame(error)
    return last is not None and last.f_code is _code_that_iterates()


def copies_compared(error: BaseException) -> Any:
    """Returns the copies of all processes, joined, that JAX found unequal; None if not known."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "assert_equal" and "out" in frame.f_locals:
            return frame.f_locals["out"]
    return None


def compares_copies(error: BaseException) -> bool:
    """Whether it was raised as ``device_put`` compared the copies of all processes."""
    frames = (frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__))
    return {"_device_put_sharding_impl", "assert_equal"} <= {*frames}


def in_eager_shard_map(error: BaseException) -> bool:
    """Whether it was raised in a function that an eager ``shard_map`` called."""
    codes = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(code.co_name == "_shard_map_impl" for code in codes)


def unbound_axis(error: BaseException) -> str:
    """Returns the mesh axis that has no meaning where it was named; empty for other errors."""
    if isinstance(error, NameError):
        found = re.search(r"unbound axis name: (\w+)", str(error))
        return found[1] if found else ""
    if not isinstance(error, AssertionError) or str(error):
        return ""
    last = _last_frame(error)
    names = last.f_locals if last is not None and last.f_code.co_name == "pvary" else {}
    return ", ".join(map(str, set(names.get("axes", ())) - set(names.get("new_axes", ()))))


@functools.cache
def _code_that_iterates() -> CodeType | None:
    """Returns the code that raises it: found out with an object that looks like such an array."""
    from jax._src import array

    try:
        array.ArrayImpl.__iter__(_LooksSpread())  # type: ignore[arg-type]
    except AssertionError as error:
        last = _last_frame(error)
        return last and last.f_code
    except Exception:
        pass
    return None


class _LooksSpread:
    ndim = 1
    is_fully_replicated = is_fully_addressable = False


def _last_frame(error: BaseException) -> FrameType | None:
    return next((frame for frame, _ in reversed([*traceback.walk_tb(error.__traceback__)])), None)
