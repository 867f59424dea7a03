"""The text of a compiled program that processes compare: what is in it, what is left out, and why.

XLA's canonical text of the optimized module, of which this module keeps everything that decides
what is computed, how, and over which devices:

- each operation with its operands, shapes, layouts and memory spaces, in the order of the schedule;
- its attributes: dimension numbers, precision and algorithm of dots, comparators of sorts, called
  computations in full, channel ids and replica groups, shardings, frontend attributes
  (``set_xla_metadata``), ``backend_config`` (attributes of FFI and other custom calls:
  ``solve_triangular(lower=True)``, ``transpose_a``; trip counts that the compiler has found);
- of the module: number of partitions and replicas, layouts of arguments and results, donation and
  aliasing;
- constants: small ones as text, of larger ones a digest (``literals``);
- beside the text: the order of the devices and ``compiler_options`` (:mod:`dispatch`).

Left out is only what may differ between processes that run the same program:

=============================== ==================================================================
left out                        why
=============================== ==================================================================
name of the module, of          made from names of Python functions and numbered as they come; two
computations and instructions   processes may have traced other functions before (jax#40312)
``metadata``                    names of functions, files and lines: a function that is called from
                                another line is the same program
control dependencies            named by instructions; the order of the schedule has them
``index`` of a Python callback  its place in a list of callbacks, longer where JAX has lowered a
                                function twice (jax#40312). **Which Python function is called back
                                is not compared**: it has no bytes that processes could compare
integers that are addresses     handles of libraries (a communicator, a plan) that are passed as
of this process's memory        attributes: each process has them elsewhere. Of 4 GiB and more, and
                                within memory that the process has mapped; Linux only
``outer_dimension_partitions``  over how many threads XLA's CPU backend spreads a loop: a host with
                                more cores has more
what XLA's GPU backend has      ``selected_algorithm``, ``algorithm``, ``plan_id``, tile sizes, and
found by timing                 the workspace they need: processes that time by themselves
                                (``--xla_gpu_shard_autotuning=false``) may choose others
=============================== ==================================================================
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

LEFT_OUT = frozenset(
    {
        "outer_dimension_partitions",
        "selected_algorithm",
        "autotune_workspace_size",
        "plan_id",
        "triton_gemm_config",
        "block_level_fusion_config",
    }
)
"""Keys of ``backend_config``; see above."""

MIN_ADDRESS = 1 << 32

_COMPUTATION = re.compile(r"^(ENTRY )?[^\s{]+ \{$", re.MULTILINE)
_CONFIG = 'backend_config={"'
_CALLBACK = re.compile(r'(custom_call_target="xla_\w*python_\w+".*\bindex = )\d+')
_INTEGER = re.compile(r"(?<![\w.\-])\d{10,20}(?![\w.])")

Ranges = list[tuple[int, int]]


def comparable(text: str, mapped: Callable[[], Ranges] | None = None) -> str:
    """Returns a module's canonical text without what may differ where the program is the same.

    Args:
        text: What XLA prints of a module with names of instructions made canonical, and without
            metadata.
        mapped: Returns the ranges of memory that this process has mapped, in order.
    """
    header, comma, rest = text.partition(",")  # it begins with the module's name
    text = f"{comma}{rest}" if header.startswith("HloModule ") else text
    text = _COMPUTATION.sub(r"\1{", text)
    if "python_" in text:
        text = _CALLBACK.sub(r"\1_", text)
    if "backend_config=" not in text:
        return text
    known = cache(mapped or _mapped)
    return "\n".join(
        _without_config(line, known) if "backend_config=" in line else line
        for line in text.split("\n")
    )


def _without_config(line: str, mapped: Callable[[], Ranges]) -> str:
    start = line.index("backend_config=")
    rest = line[start:]
    if rest.startswith(_CONFIG):
        at = len(_CONFIG) - 2
        try:
            value, end = json.JSONDecoder().raw_decode(rest, at)
        except ValueError:  # a custom call's own text
            pass
        else:
            kept = json.dumps(_kept(value), sort_keys=True)
            rest = f"{rest[:at]}{kept}{rest[end:]}"
    return line[:start] + _INTEGER.sub(lambda found: _no_address(found[0], mapped), rest)


def _kept(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _kept(each) for key, each in value.items() if not _is_left_out(key, each)}
    return [_kept(each) for each in value] if isinstance(value, list) else value


def _is_left_out(key: str, value: Any) -> bool:
    # That of a convolution is an object; that of a dot, which the program asks for, a word.
    return key in LEFT_OUT or (key == "algorithm" and isinstance(value, dict))


def _no_address(digits: str, mapped: Callable[[], Ranges]) -> str:
    number = int(digits)
    if number < MIN_ADDRESS:
        return digits
    ranges = mapped()
    place = bisect.bisect_right(ranges, number, key=lambda each: each[0]) - 1
    is_address = place >= 0 and ranges[place][0] <= number < ranges[place][1]
    return "address" if is_address else digits


def _mapped() -> Ranges:
    """Returns the ranges of memory that this process has mapped; none where that is not known."""
    try:
        with open("/proc/self/maps") as file:
            lines = [line.split(" ", 1)[0].split("-") for line in file]
    except OSError:  # no Linux
        return []
    return sorted((int(start, 16), int(end, 16)) for start, end in lines)
