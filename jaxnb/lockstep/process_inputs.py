"""Digests of what JAX takes as equal on all processes without looking."""

from __future__ import annotations

import functools
import os
import platform
import re
import zlib
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import xxhash

from jaxnb.compat import jax_dispatch
from jaxnb.compat.jax_arrays import host_words
from jaxnb.model.dispatches import Argument, Made, Origin
from jaxnb.model.group import Settings

# The hash is xxHash's XXH3 of 128 bits: on two cores it reads 22–32 GB/s where a copy into fresh
# memory makes 11 GB/s, ``zlib.crc32`` 6.7, ``zlib.adler32`` 3.9 and BLAKE2b 1.3. It is for
# accidents,
# not against malice. It runs without the interpreter's lock, so other threads go on meanwhile.

MAX_COPY_BYTES = 8 << 20
"""Arrays that are not contiguous are copied in pieces of about this size."""


def digest(array: np.ndarray[Any, Any], seed: int = 0) -> bytes:
    """Digests an array's elements in C order; its shape and dtype are not in it.

    Bits count, not values: 0.0 and -0.0 differ, and so do two NaNs of other bits.

    Args:
        array: Of any dtype without Python objects, any size, contiguous or not. Contiguous ones
            are not copied.
        seed: Goes into the digest.

    Returns:
        16 bytes.
    """
    if array.flags.c_contiguous:
        return xxhash.xxh3_128_digest(_bytes(array), seed)
    total = xxhash.xxh3_128(seed=seed)
    most = max(1, MAX_COPY_BYTES // max(1, array.itemsize))
    for piece in np.nditer(
        array, ["buffered", "external_loop", "zerosize_ok"], order="C", buffersize=most
    ):
        total.update(_bytes(piece))  # type: ignore[arg-type]
    return total.digest()


def _bytes(array: np.ndarray[Any, Any]) -> memoryview:
    # NumPy's own view: dtypes such as bfloat16 have no buffer that Python knows.
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


_MAY_DIFFER = re.compile(
    "cache|log_|logging|dump|debug_info|traceback|source|pprint|verbose|proxy|unzip|pgle|report|warn_|timeout"
    "|limit|address|transfer_size|dcn|mtls|distributed|share_binary|collectives_impl|recover|preempt"
    "|platform|backend|visible|mock|default_device|num_cpu|sort_devices|async_dispatch|pjrt|shard_args"
    "|unsafe|leaked|garbage|serial|export|magma|check_vma"
)
"""Settings of ``jax.config`` that may differ by process: what JAX logs, dumps, keeps and shows, its
connections, its devices, how they are called, and what it sets itself around the body of a
``shard_map``. All others are compared, new ones of JAX too."""


@functools.cache
def _is_compared(name: str) -> bool:
    return _MAY_DIFFER.search(name) is None


def _setting_text(name: str, value: Any) -> str:
    text = str(value.value if isinstance(value, Enum) else value)
    has_no_effect = text in ("log", "warn") or ("guard" in name and value is None)
    return "allow" if has_no_effect else text


def at_start() -> dict[str, str]:
    """Returns what this process has from its start on: its environment, and versions."""
    variables = {name: os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")}
    modules = {"jax": jax, "jaxlib": jax.lib, "numpy": np, "ml_dtypes": ml_dtypes}
    versions = {f"version of {name}": module.__version__ for name, module in modules.items()}
    return variables | versions | {"version of Python": platform.python_version()}


def current() -> dict[str, str]:
    """Returns the settings of ``jax.config`` that are compared, as they are in this thread."""
    return {n: _setting_text(n, value) for n, value in jax.config.values.items() if _is_compared(n)}


class OwnSettings:
    """This process's settings, as it joined and since.

    JAX takes for granted that all processes have the same. Where one has not, the same line
    compiles into another program, and lockstep tells of the settings then.

    Attributes:
        report: What it had as it joined, its environment and versions among it.
    """

    def __init__(self) -> None:
        self._start = {**current(), **at_start()}
        self.report: Settings = tuple(self._start.items())

    def changes(self) -> Settings:
        """Returns the settings that are not what they were as this process joined."""
        now = {**current(), "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}
        return tuple((n, v) for n, v in now.items() if self._start.get(n) != v)


_SMALL_BYTES = 4 << 10
"""Up to here zlib is faster, which takes half a microsecond to be called."""

_DIGEST = "_jaxnb_input"


HostInput = tuple[int, Any]
"""What a dispatch was given that no other process has a part of: its digest, 0 where it was not
looked at, and what is said of it: its value if it is one number, else dtype and shape."""


def digests_of(arguments: Iterable[Any]) -> tuple[int, tuple[HostInput, ...]]:
    """Returns digests of the numbers, NumPy arrays and local arrays among arguments.

    NumPy arrays are read each time, as JAX copies them each time. Arrays of JAX's on this process
    alone are waited for and read once; on an accelerator they are not looked at: to copy each to
    the host would stop what is queued there.

    Args:
        arguments: What is given to a computation.

    Returns:
        A checksum of all, 0 if there is none of these, and each by itself, in their order. It is
        for accidents, not against malice.
    """
    found: list[HostInput] = []
    for argument in arguments:
        if isinstance(argument, jax.Array):
            if argument.is_fully_addressable:
                found.append(_of_local(argument))
        elif isinstance(argument, int | float | complex):
            found.append((zlib.crc32(repr(argument).encode()) or 1, argument))
        elif _is_of_host(argument):
            array = np.asarray(argument)
            found.append((_of_host_array(array, 0), _said_of(array)))
    if not found:
        return 0, ()
    return hash(tuple(each[0] for each in found)) or 1, tuple(found)


def digest_of_put(given: Any, dtype: Any) -> int:
    """Digests host data that become an array of this dtype; 0 for what is not looked at."""
    if isinstance(given, jax.Array):
        _, found = digests_of([given])
        return found[0][0] if found else 0
    return _of_host_array(np.asarray(given).astype(dtype, copy=False), 0)


def arguments_of_host(origins: Sequence[Origin], given: Sequence[HostInput]) -> list[Argument]:
    """Returns, of what a dispatch was given, what is not a part of a global array.

    Args:
        origins: Those of all arguments, as :meth:`Origins.of_arguments` has them.
        given: What :func:`digests_of` has returned for them.
    """
    places = [i for i, (number, _) in enumerate(origins) if not number]
    if len(places) != len(given):  # some could not be looked at, on an accelerator
        return []
    return [
        Argument(place, "", number, Made(number, "host", _text(what), 0, 0, None))
        for place, (number, what) in zip(places, given, strict=True)
        if number
    ]


def _is_of_host(argument: Any) -> bool:
    """Whether NumPy can look at an argument without a dispatch: a ref would be read by one."""
    is_of_numpy = isinstance(argument, np.ndarray | np.generic)
    return is_of_numpy or type(argument).__name__ == "TypedNdArray"


def _is_key(array: jax.Array) -> bool:
    return bool(jnp.issubdtype(array.dtype, jax.dtypes.prng_key))


def _of_local(array: jax.Array) -> HostInput:
    # A replica on each local device, or one device: any of them will do.
    words = _looked_at(array)
    if words is None:
        return 0, None
    if array.size != 1 or _is_key(array):
        return _of_array(words), (array.dtype, array.shape)
    host = host_words(words.addressable_data(0))
    return _of_host_array(host, 0), _said_of(host)


def _looked_at(array: jax.Array) -> jax.Array | None:
    """Returns what is to be looked at of an array, of keys their words; None for nothing."""
    device: Any = next(iter(array.sharding.device_set))
    if device.platform != "cpu" or not array.is_fully_addressable or array.is_deleted():
        return None
    return jax_dispatch.key_words(array) if _is_key(array) else array


def _of_array(array: jax.Array) -> int:
    if array.size * array.dtype.itemsize <= _SMALL_BYTES:
        return _of_parts(array)
    known: int | None = array.__dict__.get(_DIGEST)
    if known is None:  # JAX's arrays do not change
        known = array.__dict__[_DIGEST] = _of_parts(array)
    return known


def _of_parts(array: jax.Array) -> int:
    count = 1 if array.is_fully_replicated else array.sharding.num_devices
    found = 0
    for i in range(count):
        found = _of_host_array(host_words(array.addressable_data(i)), found)
    return found


def _of_host_array(array: np.ndarray[Any, Any], before: int) -> int:
    if array.dtype.hasobject:
        return before
    if array.nbytes > _SMALL_BYTES:
        seed = before & 0xFFFFFFFFFFFFFFFF
        return int.from_bytes(digest(array, seed)[:7], "big") or 1
    return zlib.crc32(_bytes(array), before & 0xFFFFFFFF) or 1


def _said_of(array: np.ndarray[Any, Any]) -> Any:
    is_number = array.size == 1 and not array.dtype.hasobject
    return array.reshape(-1)[0] if is_number else (array.dtype, array.shape)


def _text(what: Any) -> str:
    if not isinstance(what, tuple):
        return str(what)
    dtype, shape = what
    return f"{dtype}[{','.join(map(str, shape))}]"


def require_there(arguments: Iterable[Any]) -> None:
    """Raises what JAX does for an array that was deleted: before others make the dispatch."""
    for each in arguments:
        if getattr(each, "is_deleted", bool)():
            each.addressable_data(0)
