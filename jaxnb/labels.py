"""Short labels for people: process ranges, sizes, times, counts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from jaxnb.model.arrays import GoneReason

Outputs = Literal["merged", "all", "first"]
"""What is shown of what several processes said alike: once, for each, or the first's only."""

MAGICS = (
    "spmd",
    *(f"spmd_{name}" for name in (
        "start", "stop", "restart", "recover", "interrupt", "status", "pull", "push", "layout",
        "collectives", "compare", "profile", "timeline", "history", "stats", "save", "load", "auto",
        "debug", "help", "steps")),
)  # fmt: skip
"""The names of all magics. A process, which has none of them, sends their users to the notebook."""

START_IMPORTS = {
    "jax": "import jax",
    "jnp": "import jax.numpy as jnp",
    "np": "import numpy as np",
    "P": "from jax import P",
    "NamedSharding": "from jax.sharding import NamedSharding",
}
"""What every process imports, unless it is bare; and how a notebook imports it."""

BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")

_ROOT = re.compile(r"\w*")

MAX_CODE = 60
"""Longer code is cut in a sentence."""

APART = "mixes shards of different arrays"
"""What is said of an array of which processes hold parts of different ones."""


NO_TEXT = "<exception str() failed>"
"""What Python shows of an exception whose own code fails to make its text."""


def text_of(error: BaseException | None) -> str:
    """Returns what an exception says, or :data:`NO_TEXT`."""
    try:
        return str(error)
    except Exception:
        return NO_TEXT


def ranks_label(processes: Iterable[int]) -> str:
    """Returns process indices as ranges: ``{0, 2, 3}`` gives ``"0,2-3"``."""
    parts: list[str] = []
    start = previous = None
    for index in [*sorted(set(processes)), None]:
        if previous is not None and start is not None and index != previous + 1:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
            start = None
        if start is None:
            start = index
        previous = index
    return ",".join(parts)


def class_label(kind: type) -> str:
    """Returns a class's name, with its module unless that is Python's own: ``"numpy.ndarray"``."""
    is_own = kind.__module__ == "builtins"
    return kind.__qualname__ if is_own else f"{kind.__module__}.{kind.__qualname__}"


def processes_label(processes: Iterable[int]) -> str:
    """Returns ``"process 2"`` or ``"processes 0,2-3"``."""
    known = set(processes)
    return f"{plural_word(len(known), 'process')} {ranks_label(known)}"


def by_text(texts: Mapping[int, str]) -> dict[str, list[int]]:
    """Returns texts that are not empty, and the processes that have each."""
    found: dict[str, list[int]] = {}
    for index, text in sorted(texts.items()):
        if text:
            found.setdefault(text, []).append(index)
    return found


def plural_word(count: int, word: str) -> str:
    """Returns the word alone, in the plural unless ``count`` is 1."""
    if count == 1:
        return word
    return word + ("es" if word.endswith(("s", "ch")) else "s")


def plural(count: int, word: str) -> str:
    """Returns ``"1 process"``, ``"4 processes"``, ``"2 devices"``."""
    return f"{format_count(count)} {plural_word(count, word)}"


def format_count(count: int) -> str:
    """Returns a count with its thousands apart: ``41203`` gives ``"41 203"``."""
    return f"{count:,}".replace(",", " ")


LOST = "it is lost"
"""Why a value was not compared that a recovery has lost."""


def short_number(value: Any) -> str:
    """Returns a number in few characters: a whole one below a million in full, else four digits.

    Args:
        value: One of Python's or NumPy's.
    """
    value = getattr(value, "item", lambda: value)()
    if isinstance(value, float):
        if value.is_integer() and abs(value) < 1e6:
            return f"{value:.0f}"
        text = f"{value:.4g}"
        return text if re.search(r"[.en]", text) else f"{value:#.4g}"  # 2.9998 is not 3
    return f"{value:.4g}" if isinstance(value, complex) else str(value)


def format_bytes(size_bytes: float | None) -> str:
    """Returns a size in binary units to three digits (``"1.50 GiB"``); ``"?"`` for None."""
    if size_bytes is None:
        return "?"
    size = float(size_bytes)
    for unit in BYTE_UNITS:
        if abs(size) < 999.5 or unit == BYTE_UNITS[-1]:
            break
        size /= 1024
    if unit == "B":
        return f"{size:.0f} B" if size == int(size) else f"{size:.1f} B"
    return f"{_three_digits(size)} {unit}"


def format_seconds(seconds: float) -> str:
    """Returns a duration in the unit that reads best: ``"12 ms"``, ``"1.4 s"``, ``"2 min 5 s"``."""
    if seconds < 0.0995:
        milliseconds = seconds * 1000
        return f"{milliseconds:.0f} ms" if milliseconds >= 0.95 else f"{milliseconds:.1f} ms"
    if seconds < 0.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def format_precisely(seconds: float) -> str:
    """Returns a duration to three digits: ``"3.21 µs"``, ``"45.0 ms"``, ``"1.20 s"``."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.9995 * size:
            return f"{_three_digits(seconds / size)} {unit}"
    return f"{_three_digits(seconds / 1e-6)} µs"


def _three_digits(size: float) -> str:
    if size < 9.995:
        return f"{size:.2f}"
    return f"{size:.1f}" if size < 99.95 else f"{size:.0f}"


def one_line(text: str, longest: int = MAX_CODE) -> str:
    """Returns text on one line, its end replaced by ``…`` if it is too long."""
    flat = " ".join(text.split())
    return flat if len(flat) <= longest else f"{flat[: longest - 1]}…"


def capitalized(text: str) -> str:
    """Returns text with its first letter in upper case and the others as they are."""
    return text[:1].upper() + text[1:]


def type_label(dtype: object, shape: Iterable[int]) -> str:
    """Returns ``"float32[8,4]"``."""
    return f"{dtype}[{','.join(map(str, shape))}]"


def paths_label(paths: Iterable[str], most: int = 8, what: str = "array") -> str:
    """Returns paths by the variables that they begin with: ``"`params` (6 arrays) and `loss`"``.

    Args:
        paths: Where they are: ``"params[0]['w']"``.
        most: So many variables are named; of the others it is said how many there are.
        what: What is there.
    """
    by_variable: dict[str, list[str]] = {}
    for path in dict.fromkeys(paths):
        by_variable.setdefault(_ROOT.match(path).group(), []).append(path)  # type: ignore[union-attr]
    said = [
        f"`{each[0]}`" if len(each) == 1 else f"`{variable}` ({plural(len(each), what)})"
        for variable, each in by_variable.items()
    ]
    if len(said) > most:
        said = [*said[:most], plural(len(said) - most, "more variable")]
    return " and ".join(filter(None, [", ".join(said[:-1]), *said[-1:]]))


def gone_label(reason: GoneReason, axes: Sequence[str] = ()) -> str:
    """Returns why an array cannot be read, as what follows its name.

    Args:
        reason: Why.
        axes: The mesh axes over which it is to be summed, of one that is unreduced.
    """
    if reason == "unreduced":
        return (
            f"is unreduced over mesh axes {', '.join(axes)}, so each device holds only a partial "
            "sum (`jax.reshard` adds them up)"
        )
    if reason == "ref":
        return "is a ref on one device, which may have been written to since"
    if reason == "deleted":
        return "was deleted since, or donated to a computation"
    return "was replaced or dropped since"
