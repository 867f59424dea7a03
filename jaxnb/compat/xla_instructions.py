"""One instruction of a compiled program, taken apart: result, attributes, metadata.

XLA's own parser tells the computations, their instructions and the opcodes. Replica groups,
channels, metadata and trip counts it keeps to itself; they are read here, from what one
instruction prints as.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jaxnb.model.collectives import Part

_HEAD = re.compile(r"\s*(?:ROOT )?%?(?P<name>[\w.$-]+) = ")
_ARRAY = re.compile(r"(?P<dtype>[a-z]\w*)\[(?P<shape>[^\]]*)\](?:\{[^}]*\})?")
_COMMENT = re.compile(r"/\*.*?\*/")
_OPCODE = re.compile(r"\s*(?P<opcode>[a-z][a-z0-9-]*)\(")
_OPEN, _CLOSE = "([{", ")]}"

_DTYPES = {"pred": "bool", "bf": "bfloat", "s": "int", "u": "uint", "f": "float", "c": "complex"}

Shape = Part | tuple["Shape", ...]
"""An array, or a tuple of shapes."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction, taken apart.

    Attributes:
        name: What XLA calls it.
        opcode: E.g. ``"all-gather-start"``.
        shape: Of its result.
        attributes: What stands behind the operands, as text.
    """

    name: str
    opcode: str
    shape: Shape
    attributes: dict[str, str]

    @property
    def called(self) -> tuple[str, ...]:
        """The names of the computations that it calls."""
        found: list[str] = []
        for key in ("to_apply", "calls", "called_computations", "body", "condition",
                    "branch_computations", "true_computation", "false_computation"):  # fmt: skip
            found += re.findall(r"%?([\w.$-]+)", self.attributes.get(key, ""))
        return tuple(found)

    @property
    def metadata(self) -> dict[str, str]:
        """What XLA knows of its origin: ``op_name``, ``stack_frame_id``, ``source_line``."""
        text = self.attributes.get("metadata", "")
        pairs = re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)', text.strip("{}"))
        return {key: _unquoted(value) for key, value in pairs}

    @property
    def trip_count(self) -> int | None:
        """How often a loop's body is run, if XLA has found out."""
        try:
            config: Any = json.loads(self.attributes.get("backend_config", ""))
            return int(config["known_trip_count"]["n"])
        except (ValueError, KeyError, TypeError):  # not there, or not JSON
            return None


def read(text: str) -> Instruction | None:
    """Takes apart what an instruction prints as; None for what is no instruction.

    Text that ends early gives what there is: nothing here may raise for a program that XLA
    has compiled.
    """
    head = _HEAD.match(text)
    if head is None:
        return None
    flat = _COMMENT.sub("", text[head.end() :])
    shape, end = _shape(flat, 0)
    opcode = _OPCODE.match(flat, end)
    if shape is None or opcode is None:
        return None
    closed = _closing(flat, opcode.end() - 1)
    return Instruction(head["name"], opcode["opcode"], shape, _attributes(flat[closed + 1 :]))


def arrays(shape: Shape) -> Iterator[Part]:
    """Returns the arrays of a shape, tuples flattened."""
    if isinstance(shape, Part):
        yield shape
    else:
        for part in shape:
            yield from arrays(part)


def _shape(text: str, start: int) -> tuple[Shape | None, int]:
    """Reads a shape; returns it and where it ends."""
    if text[start : start + 1] != "(":
        found = _ARRAY.match(text, start)
        if found is None:
            return None, start
        return _part(found["dtype"], found["shape"]), found.end()
    parts: list[Shape] = []
    place = start + 1
    while place < len(text) and text[place] != ")":
        if text[place] in ", ":
            place += 1
            continue
        part, place = _shape(text, place)
        if part is None:
            return None, place
        parts.append(part)
    return tuple(parts), place + 1


def _part(dtype: str, shape: str) -> Part:
    # `<=8` is a bound of a dynamic dimension: what there is room for.
    sizes = tuple(int(size.strip().lstrip("<=")) for size in shape.split(",") if size.strip())
    return Part(dtype_name(dtype), sizes, math.ceil(math.prod(sizes) * _bits(dtype) / 8))


def dtype_name(name: str) -> str:
    """Returns the name that JAX has for a dtype of XLA: ``"s32"`` is ``"int32"``."""
    kind, bits, rest = re.fullmatch(r"([a-z]+)(\d*)(.*)", name).groups()  # type: ignore[union-attr]
    separator = "_" if rest else ""
    return f"{_DTYPES.get(kind, kind)}{bits}{separator}{rest}"


def _bits(dtype: str) -> int:
    if dtype == "pred":
        return 8
    found = re.match(r"[a-z]+(\d+)", dtype)
    return int(found[1]) if found else 0  # a token


def _closing(text: str, start: int) -> int:
    """Returns where the bracket closes that opens at ``start``."""
    depth, place = 0, start
    while place < len(text):
        character = text[place]
        if character in "\"'":
            place = _end_of_quote(text, place)
        elif character in _OPEN:
            depth += 1
        elif character in _CLOSE:
            depth -= 1
            if depth == 0:
                return place
        place += 1
    return len(text)


def _end_of_quote(text: str, start: int) -> int:
    place = start + 1
    while place < len(text) and text[place] != text[start]:
        place += 2 if text[place] == "\\" else 1
    return place


def _attributes(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for piece in _split(text):
        key, _, value = piece.partition("=")
        if key == "device_ids" and "replica_groups" in found:
            # The one attribute that has a comma outside of brackets.
            found["replica_groups"] += f", {piece}"
        elif key:
            found[key] = value
    return found


def _split(text: str) -> Iterator[str]:
    """Splits at commas outside of brackets and quotes."""
    start = place = 0
    while place < len(text):
        if text[place] in "\"'":
            place = _end_of_quote(text, place)
        elif text[place] in _OPEN:
            place = _closing(text, place)
        elif text[place] == ",":
            yield text[start:place].strip()
            start = place + 1
        place += 1
    yield text[start:].strip()


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    return re.sub(r"\\(.)", r"\1", text[1:-1])
