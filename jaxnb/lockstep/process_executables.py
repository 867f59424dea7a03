"""What is the same for all dispatches of an executable."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

from jaxnb.compat import jax_dispatch as internals
from jaxnb.compat.jax_unchecked import unchecked_axes
from jaxnb.lockstep.process_ask_conductor import as_digest
from jaxnb.lockstep.process_programs import Programs
from jaxnb.model.dispatches import Processes, Shapes

_COLLECTIVE = re.compile(
    r"\b(?:all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute"
    r"|collective-broadcast|send|recv)(?:-start)?\("
)

_CALLS_BACK = re.compile(r'custom_call_target="xla_\w*python\w*callback"')


@dataclass(slots=True)
class Known:
    """What is the same for all dispatches of one executable."""

    name: str
    processes: Processes
    fingerprint: int = 0
    program: bytes = b""  # the same, as words have it
    collectives: bool = False
    calls_back: bool = False  # it calls Python back, which may raise, or differ by process
    axes: tuple[str, ...] = ()  # over which it declares results replicated, without a check
    arguments: Shapes | None = None  # None until it is dispatched
    results: Shapes | None = None
    kept: tuple[int, ...] | None = None  # which arguments it uses; None for all


def known_of(executable: Any, programs: Programs) -> Known:
    """Returns it; of one that spans processes it keeps the program, for people."""
    devices = internals.executable_devices(executable)
    name = internals.executable_name(executable)
    known = Known(name, tuple(sorted({device.process_index for device in devices})))
    if len(known.processes) > 1:
        # Processes whose meshes have the devices in different order wait for each other for ever.
        order = internals.executable_order(executable)
        text = f"{order} {internals.executable_text(executable)}"
        known.fingerprint = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest())
        known.program = as_digest(known.fingerprint)
        known.collectives = _COLLECTIVE.search(text) is not None
        known.calls_back = _CALLS_BACK.search(text) is not None
        known.axes = unchecked_axes(executable)
        options = internals.executable_options(executable)
        facts = [f"devices {order}", *(f"compiler_options {each[1:]}" for each in options)]
        programs.keep(known.fingerprint, executable, text, facts)
    return known
