"""Cards of what moves between the notebook and the processes, and of what has come."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeGuard

from jaxnb.arrays.blocks import total_bytes
from jaxnb.arrays.card_array import array_facts, array_notes, array_pictures, array_type
from jaxnb.arrays.lost import PerProcess, Record, class_of
from jaxnb.arrays.pictures import preview_text
from jaxnb.display.blocks import Cell, Column, Either, Facts, Note, Pre, Progress, Row, Table
from jaxnb.display.card import Card, by_process_block, card_of
from jaxnb.display.markup import grouped, is_rich
from jaxnb.display.text import WIDTH
from jaxnb.labels import format_bytes, format_seconds, one_line, plural, processes_label
from jaxnb.model.arrays import ArrayInfo

if TYPE_CHECKING:
    from jaxnb.arrays.gathered import GatheredArray


_SHORT = 40
_SHOWN = (bool, int, float, complex, str, bytes, type(None))


@dataclass(frozen=True, slots=True)
class Moved:
    """A value that was pulled or pushed.

    Attributes:
        name: Where it is now.
        type: ``"float32[8, 4]"``, ``"dict of 3 arrays"`` or the like.
        spec: Its partition spec, if it is an array that has one.
        size_bytes: Bytes of its arrays; None without arrays.
        notes: What to know beside.
    """

    name: str
    type: str
    spec: str = ""
    size_bytes: int | None = None
    notes: tuple[str, ...] = ()

    def with_notes(self, *notes: str) -> Moved:
        """Returns the same with further notes."""
        return replace(self, notes=(*self.notes, *notes))

    def as_placed(self, entries: Sequence[tuple[str, ArrayInfo]], notes: tuple[str, ...]) -> Moved:
        """Returns the value as it is on the processes: arrays with a sharding."""
        placed = replace(
            self.with_notes(*notes), size_bytes=sum(total_bytes(a) for _, a in entries)
        )
        if len(entries) != 1:
            return placed
        array = entries[0][1]
        return replace(placed, type=array_type(array), spec=array.spec or "")


def moved(name: str, value: Any, *notes: str) -> Moved:
    """Describes a value as the notebook holds it."""
    sizes = {id(leaf): leaf.nbytes for leaf in leaves(value)}  # several processes' may be one
    spec = _spec(value) if is_gathered(value) else ""
    if isinstance(value, PerProcess):
        notes = ("differs by process", *notes)
    return Moved(name, type_of(value), spec, sum(sizes.values()) if sizes else None, notes)


def type_of(value: Any) -> str:
    """Returns a short text for what a value is."""
    if is_gathered(value):
        shape = value.wanted().region.result_shape
        return f"{value.info.dtype}[{', '.join(map(str, shape))}]"
    if is_array(value):
        kind = type(value).__name__.replace("ndarray", "NumPy").removesuffix("Impl")
        return f"{kind} {value.dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, PerProcess):
        kinds = {type_of(each) for each in value.values()}
        if len(kinds) > 1:
            kinds = {type(each).__name__ for each in value.values()}
        return f"{' or '.join(sorted(kinds))} by process"
    if isinstance(value, _SHOWN):
        return f"{type(value).__name__} {one_line(repr(value), _SHORT)}"
    kind = f"{class_of(value)} as a record" if isinstance(value, Record) else type(value).__name__
    count = len(leaves(value))
    return kind + (f" of {plural(count, 'array')}" if count else "")


def is_gathered(value: Any) -> TypeGuard[GatheredArray]:
    """Whether it is an array of the processes."""
    from jaxnb.arrays.gathered import GatheredArray  # late, as it loads NumPy

    return isinstance(value, GatheredArray)


def is_array(value: Any) -> bool:
    """Whether it is an array of NumPy's, of JAX's in the notebook, or of the processes."""
    import numpy as np

    if isinstance(value, np.ndarray) or is_gathered(value):
        return True
    return hasattr(value, "__array__") and hasattr(value, "sharding")  # without importing jax


class _Finder(pickle.Pickler):
    """Finds the arrays in a value as pickle finds its parts; writes nothing of them."""

    def __init__(self) -> None:
        super().__init__(self, protocol=5)
        self.found: list[Any] = []

    def write(self, written: bytes) -> int:
        """Forgets what is written."""
        return len(written)

    def reducer_override(self, value: Any) -> Any:
        """Keeps an array; puts nothing in its place, and in that of code."""
        if is_array(value):
            self.found.append(value)
        elif not isinstance(value, type | FunctionType) or value is tuple:
            return NotImplemented
        return tuple, ()


def leaves(value: Any) -> list[Any]:
    """Returns the arrays in a value, each once; none of what cannot be pickled."""
    finder = _Finder()
    try:
        finder.dump(value)
    except Exception:  # a class's own methods make its pickle, and may raise anything
        return []
    return finder.found


def narrowed(value: Any, dtypes: set[str]) -> tuple[str, ...]:
    """Says which dtypes of a pushed value JAX has made narrower.

    Args:
        value: What was pushed.
        dtypes: Names of the dtypes that its arrays have now.
    """
    wide = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}
    had = {str(leaf.dtype) for leaf in leaves(value)} - dtypes
    lost = [
        f"{dtype} → {wide[dtype]}" for dtype in sorted(had & set(wide)) if wide[dtype] in dtypes
    ]
    return (f"{', '.join(lost)}: jax_enable_x64 is off",) if lost else ()


def _spec(array: Any) -> str:
    """Returns the spec of a pulled array; of a part of one, of what it is a part of."""
    info = array.info
    if not info.spec or array.wanted().region.is_whole:
        return info.spec or ""
    return f"of {info.dtype}[{', '.join(map(str, info.shape))}] {info.spec}"


MIN_RATE_BYTES = 16 << 20
"""The rate of less than this tells about round trips."""


def transfer_card(doing: str, done_bytes: int, total_bytes: int, seconds: float) -> Card:
    """How far a transfer is; shown again and again in the same place.

    Args:
        doing: What is done: ``"pulling `x`"``.
        done_bytes: How much has been moved.
        total_bytes: How much there is to move.
        seconds: Since when.
    """
    fraction = min(1.0, done_bytes / total_bytes) if total_bytes else 1.0
    facts = [f"{format_bytes(done_bytes)} of {format_bytes(total_bytes)}"]
    if done_bytes and seconds > 0:
        # Whole seconds: tenths would flicker.
        left = max(1, round(seconds * (1 - fraction) / fraction))
        facts.append(f"{format_bytes(done_bytes / seconds)}/s")
        facts.append(f"{f'{left} s' if left < 60 else format_seconds(left)} left")
    return card_of(Progress(one_line(doing, 60), round(100 * fraction), facts))


def moved_card(
    rows: Sequence[Moved],
    where: str,
    moved_bytes: int,
    seconds: float,
    moving_seconds: float | None = None,
) -> Card:
    """What was pulled or pushed, how much, and how fast.

    Args:
        rows: The values.
        where: ``"pulled"``, ``"pushed to 4 processes"``.
        moved_bytes: How much travelled beside the messages; with replicas more than the size.
        seconds: How long all took.
        moving_seconds: How long it took to move the bytes; ``seconds`` by default.
    """
    tail = [format_seconds(seconds)]
    moving_seconds = seconds if moving_seconds is None else moving_seconds
    if moved_bytes >= MIN_RATE_BYTES and moving_seconds > 0:
        tail.append(f"{format_bytes(moved_bytes / moving_seconds)}/s")
    sizes = [row.size_bytes for row in rows if row.size_bytes is not None]
    total = [format_bytes(sum(sizes))] if sizes else []
    if len(rows) == 1:
        row = rows[0]
        facts = [row.type, *filter(None, [row.spec]), *total, where, *tail]
        return card_of(Facts(facts, f"{row.name}:"), *(_moved_note(note) for note in row.notes))
    columns = [Column(least=12), Column(least=16), Column(least=12), Column(align=">")]
    cells, by_note = list[Row](), dict[str, list[str]]()
    for row in rows:
        size = "" if row.size_bytes is None else format_bytes(row.size_bytes)
        cells.append([Cell(row.name, "bold"), row.type, row.spec, size])
        for note in row.notes:
            by_note.setdefault(note, []).append(row.name)
    return card_of(
        Facts([*total, where, *tail], plural(len(rows), "value")),
        Table(columns, cells),
        *(_moved_note(f"{', '.join(who)}: {note}") for note, who in by_note.items()),
    )


def _moved_note(note: str) -> Note:
    return Note(note, "dim", before="  ")


def gathered_card(array: GatheredArray, since: str = "") -> Card:
    """An array of the processes as the notebook holds it: its picture, and its values.

    Args:
        array: The array; nothing of it is fetched.
        since: When it was pulled, if others may have changed its name since.
    """
    info, region, key = array.info, array.wanted().region, array.wanted().key
    notes = []
    if array.is_gone:
        notes.append("its data are gone with the processes that had them")
    elif not array.is_here and not info.deleted:
        until = f", and while it is there: {since}" if since else ""
        notes.append(f"data stay on the processes until used{until}")
        if unasked := {shard.process_index for shard in info.shards} - set(key.processes):
            notes.append(
                f"only {processes_label(key.processes)} asked: parts of "
                f"{processes_label(unasked)} cannot be read"
            )
    if since and array.is_here:
        notes.append(since)
    is_whole, values = region.is_whole, ""
    if array.is_here:  # they say more than the corners
        import numpy as np  # late: the cards of a start need not wait for it

        values = np.array2string(np.asarray(array), separator=", ", max_line_width=WIDTH)
    elif is_whole and not info.deleted:
        values = preview_text(info)
    part = "" if is_whole else f"{key.name}{region}, shape {region.result_shape}, of "
    return card_of(
        Facts(array_facts(info), f"{part}{array_type(info)}"),
        Either(array_pictures(info)),
        Pre(values, wide=True),
        *array_notes(info),
        *(Note(note, "dim", before="— ") for note in notes),
    )


def per_process_card(bundles: Iterable[tuple[int, Mapping[str, Any]]]) -> Card:
    """Values that differ by process, as a table by process; rich ones a click away.

    Args:
        bundles: Process index and the MIME bundle of its value.
    """
    entries = [(process, bundle, b"") for process, bundle in bundles]
    rich = any(is_rich(bundle) for _, bundle, _ in entries)
    return card_of(by_process_block(grouped(entries), rich=rich))
