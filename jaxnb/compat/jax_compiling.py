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

from jaxnb.compat import xla
from jaxnb.compat.jax_runtime import reporting
from jaxnb.compat.xla import Place

Lines = tuple[Place | None, ...]
"""The line that each operation of a program comes from; None where it comes of no file."""

_LOCATION = re.compile(r"^(#loc\d*) = loc\((.*)\)$", re.MULTILINE)
"""A location, as MLIR writes it after the program: a line of a file, or made of others."""

_PLACE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')
_REFERENCE = re.compile(r"#loc\d*")
_OF_OPERATION = re.compile(r" loc\((#loc\d*)\)$", re.MULTILINE)

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
        lines: The line that each of its operations comes from; programs with one key have as many.
        compile: Compiles it; raises what JAX raises.
        load: Returns the executable that bytes hold, on the devices of this program.
    """

    program: str
    key: str
    lines: Lines
    compile: Callable[[], Any]
    load: Callable[[bytes], Any]


@reporting
def hook_compilations(make: Callable[[Compilation], Any]) -> None:
    """Has each compilation made by ``make``, which returns an executable for it.

    Left to JAX is what cannot be shared: programs with custom calls that XLA and jaxlib do not
    bring, of devices that are not this process's CPUs, and all where the user has XLA write its
    dumps or JAX's own ``jax_enable_compilation_cache`` is off.
    """
    from jax._src import cache_key, compiler, config

    original = compiler.backend_compile_and_load
    inspect.signature(original).bind(*range(5))
    inspect.signature(cache_key._hash_serialized_compile_options).bind(*range(3))
    inspect.signature(cache_key._hash_xla_flags).bind(*range(2))
    config.enable_compilation_cache.value  # noqa: B018

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
        text = module.operation.get_asm(enable_debug_info=False)
        owners = {device.process_index for device in executable_devices}
        is_own = any(not name.startswith(_SHARED_CALLS) for name in _CALL.findall(text))
        if is_own or backend.process_index() not in owners:
            return plain()
        name = str(module.operation.attributes["sym_name"]).strip('"')
        wanted = Compilation(
            program=_JITTED.sub(r"jit(\1)", name),
            key=_key(cache_key, text, backend, options, is_local=len(owners) == 1),
            lines=_lines(module.operation.get_asm(enable_debug_info=True)),
            compile=plain,
            load=lambda data: backend.deserialize_executable(data, executable_devices, options),
        )
        return make(wanted)

    compiler.backend_compile_and_load = compile_once


def _key(cache_key: Any, text: str, backend: Any, options: Any, *, is_local: bool) -> str:
    """Returns the parts of JAX's own key, but for this process's place in the group.

    A program of one process does not depend on which of its devices it runs on.

    Args:
        cache_key: JAX's module.
        text: The program, without the lines of files that it comes from.
        backend: What compiles it.
        options: How.
        is_local: It is of one process.
    """
    digest = hashlib.sha256()
    for part in (_of_host(), backend.platform, backend.platform_version, cache_key.custom_hook()):
        digest.update(f"{part}\0".encode())
    cache_key._hash_xla_flags(digest, cache_key.get_flag_prefixes())
    cache_key._hash_serialized_compile_options(digest, options, is_local)
    digest.update(text.encode())
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


def _lines(text: str) -> Lines:
    """Returns the line of each operation of a program, as it is told of the executable."""
    bodies = dict(_LOCATION.findall(text))
    found: dict[str, tuple[Place, ...]] = {}

    def stack(location: str) -> tuple[Place, ...]:
        if location not in found:
            body = bodies.get(location, "")
            if (place := _PLACE.match(body)) is not None:
                found[location] = ((place[1], int(place[2]), int(place[3])),)
            else:  # a name for another, or a call at another
                found[location] = tuple(p for each in _REFERENCE.findall(body) for p in stack(each))
        return found[location]

    known = {each: xla.told(stack(each)) for each in bodies}
    return tuple(known.get(each) for each in _OF_OPERATION.findall(text))


def serialized(executable: Any) -> bytes:
    """Returns an executable as bytes, which ``Compilation.load`` takes.

    Raises:
        Exception: The backend cannot.
    """
    return bytes(executable.serialize())


def has_lines_of(executable: Any, then: Lines, now: Lines) -> bool:
    """Has the lines of a program that was compiled elsewhere told as they are here.

    Of several equal programs the lines of the last are told. A line that has become several is told
    no more, as nobody knows which it is, nor one that only the program's first compilation had, in
    another session's cell say.

    Args:
        executable: What was loaded.
        then: The lines of the program's operations as it was compiled.
        now: Those now.

    Returns:
        Whether that is possible.
    """
    name = executable.fingerprint
    if name is None or len(then) != len(now):
        return then == now
    if then == now:
        xla.moved_places.pop(name, None)
        return True
    became: dict[Place, set[Place]] = {}
    for before, line in zip(then, now, strict=True):
        if before is not None:
            became.setdefault(before, set()).update([line] if line else [])
    xla.moved_places[name] = {
        before: lines.pop() if len(lines) == 1 else xla.NOWHERE for before, lines in became.items()
    }
    return True
