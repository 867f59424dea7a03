"""What XLA compiles, as JAX's private names hand it over: each program with a key of its own.

``hook_compilations`` has every compilation of the CPU's backend made by a function of jaxnb's,
which may load what another process has compiled in place of compiling it once more.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxnb.compat import xla_frames
from jaxnb.compat.xla_frames import Place

_PLACE = re.compile(r'loc\("((?:[^"\\]|\\.)*)":(\d+):(\d+)(?: to (?:\d+)?:\d+)?\)')
"""A line of a file, as MLIR writes it."""

_JITTED = re.compile(r"^jit_(.*)$")

_CALL = re.compile(r'custom_call @"?([\w.$]+)')

_SHARED_CALLS = ("lapack_", "Sharding", "SPMD", "TopK", "annotate_device_placement", "cpu_csr_",
                 "xla.sdy.", "mhlo.", "chlo.")  # fmt: skip
"""How the names of custom calls begin that XLA and jaxlib bring. Others may call functions of one
process, by their addresses: an executable of another process would call something else."""


@dataclass(frozen=True)
class Compilation:
    """A program that is to be compiled.

    Attributes:
        program: Its name: ``"jit(step)"``.
        key: Equal for equal programs that are compiled in the same way, on all processes of a
            host, today and tomorrow; other lines of files have the same key.
        places: The lines that its operations come from; programs with one key have as many.
        compile: Compiles it; raises what JAX raises.
        load: Returns the executable that bytes hold, on the devices of this program.
    """

    program: str
    key: str
    places: tuple[Place, ...]
    compile: Callable[[], Any]
    load: Callable[[bytes], Any]


def hook_compilations(make: Callable[[Compilation], Any]) -> str:
    """Has each compilation made by ``make``, which returns an executable for it.

    Left to JAX is what cannot be shared: programs with custom calls that XLA and jaxlib do not
    bring, of devices that are not this process's CPUs, and all where the user has XLA write its
    dumps or JAX's own ``jax_enable_compilation_cache`` is off.

    Returns:
        Why that is not possible where this JAX lacks a name; empty if it was done.
    """
    try:
        from jax._src import cache_key, compiler, config

        original = compiler.backend_compile_and_load
        inspect.signature(original).bind(*range(5))
        inspect.signature(cache_key._hash_serialized_compile_options).bind(*range(3))
        inspect.signature(cache_key._hash_xla_flags).bind(*range(2))
        config.enable_compilation_cache.value  # noqa: B018
    except (ImportError, AttributeError, TypeError) as error:
        return str(error)

    @functools.wraps(original)
    def compile_once(
        backend: Any, module: Any, executable_devices: Any, options: Any, host_callbacks: Any
    ) -> Any:
        plain = functools.partial(
            original, backend, module, executable_devices, options, host_callbacks
        )
        dumps = options.executable_build_options.debug_options.xla_dump_to
        is_on = config.enable_compilation_cache.value and not dumps and not host_callbacks
        if not (is_on and backend.platform == "cpu" and hasattr(backend, "deserialize_executable")):
            return plain()
        text = module.operation.get_asm(enable_debug_info=True)
        owners = {device.process_index for device in executable_devices}
        is_own = any(not name.startswith(_SHARED_CALLS) for name in _CALL.findall(text))
        if is_own or backend.process_index() not in owners:
            return plain()
        places: list[Place] = []
        bare = _PLACE.sub(functools.partial(_note_place, places), text)
        wanted = Compilation(
            program=_JITTED.sub(
                r"jit(\1)", str(module.operation.attributes["sym_name"]).strip('"')
            ),
            key=_key(cache_key, bare, backend, options, is_local=len(owners) == 1),
            places=tuple(places),
            compile=plain,
            load=lambda data: backend.deserialize_executable(data, executable_devices, options),
        )
        return make(wanted)

    compiler.backend_compile_and_load = compile_once
    return ""


def _key(cache_key: Any, bare: str, backend: Any, options: Any, *, is_local: bool) -> str:
    """Returns the parts of JAX's own key, but for this process's place in the group.

    A program of one process does not depend on which of its devices it runs on.

    Args:
        cache_key: JAX's module.
        bare: The program without its lines of files.
        backend: What compiles it.
        options: How.
        is_local: It is of one process.
    """
    digest = hashlib.sha256()
    for part in (_of_host(), backend.platform, backend.platform_version, cache_key.custom_hook()):
        digest.update(f"{part}\0".encode())
    cache_key._hash_xla_flags(digest, cache_key.get_flag_prefixes())
    cache_key._hash_serialized_compile_options(digest, options, is_local)
    digest.update(bare.encode())
    return digest.hexdigest()


@functools.cache
def _of_host() -> str:
    """Returns what of this host decides how code is compiled, and by which versions."""
    import jax
    from jax._src.lib import version_str

    try:
        with open("/proc/cpuinfo", errors="replace") as file:
            first = file.read(1 << 14).partition("\n\n")[0]  # the kernel makes no more than that
        known = re.findall(r"^(?:flags|Features|model name)\s*:.*", first, re.MULTILINE)
    except OSError:  # no Linux
        known = [platform.processor()]
    cores = os.environ.get("NPROC") or os.cpu_count()
    return f"{jax.__version__} {version_str} {platform.machine()} {cores} {known}"


def _note_place(places: list[Place], found: re.Match[str]) -> str:
    file, line, column = found.groups()
    places.append((file, int(line), int(column)))
    return "loc"


def serialized(executable: Any) -> bytes:
    """Returns an executable as bytes, which ``Compilation.load`` takes.

    Raises:
        Exception: The backend cannot.
    """
    return bytes(executable.serialize())


def has_lines_of(executable: Any, then: tuple[Place, ...], now: tuple[Place, ...]) -> bool:
    """Has the lines of a program that was compiled elsewhere told as they are here.

    Of several equal programs the lines of the last are told.

    Args:
        executable: What was loaded.
        then: The program's lines as it was compiled.
        now: Its lines now.

    Returns:
        Whether that is possible.
    """
    name = executable.fingerprint
    moved = dict(zip(then, now, strict=False))
    is_clear = len(then) == len(now) and all(moved[a] == b for a, b in zip(then, now, strict=True))
    if name is None or not is_clear:
        return then == now
    if then == now:
        xla_frames.moved_places.pop(name, None)
    else:
        xla_frames.moved_places[name] = moved
    return True
