"""Cards of arrays and of trees of them: HTML, and text of 80 columns."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from itertools import product
from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxnb.arrays import card_array
from jaxnb.arrays.blocks import corner_edges, each_its_own
from jaxnb.arrays.pictures import tint
from jaxnb.cells import card_value
from jaxnb.cells.result import CellResult, ProcessResult
from jaxnb.display.html import AMBER
from jaxnb.lockstep.provenance import OF_PARTS
from jaxnb.model.arrays import ArrayInfo, MeshInfo, ShardInfo
from jaxnb.model.cells import ValueInfo
from jaxnb.model.dispatches import Argument, Made
from support.cards import EVIL, Tags


def array(
    shape: tuple[int, ...],
    cuts: tuple[int, ...],
    replicas: int = 1,
    digest: Callable[[int], bytes] = lambda device: b"",
) -> ArrayInfo:
    """An array cut evenly, its parts dealt to devices in order, two devices a process."""
    shards = []
    for place in product(*(range(cut) for cut in cuts)):
        index = tuple(
            (p * size // cut, (p + 1) * size // cut)
            for p, size, cut in zip(place, shape, cuts, strict=True)
        )
        for replica in range(replicas):
            device = len(shards)
            shards.append(ShardInfo(device, device // 2, index, replica, digest(device)))
    places = product(*corner_edges(shape))
    corner = tuple((place, str(sum(place))) for place in places)
    count = len(shards)
    mesh = MeshInfo(("data",), (count,), ("Auto",), tuple(range(count)))
    whole = prod(cuts) == 1
    return ArrayInfo(
        shape, "float32", 32, "", "P('data')", mesh, "device", whole, False, tuple(shards), corner
    )


@dataclass
class Box:
    """A box of a picture, as HTML has it."""

    title: str
    style: str
    lines: list[str] = field(default_factory=list)


class Pictures(HTMLParser):
    """The boxes of an array's parts and those of its mesh, and all texts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.parts: list[Box] = []
        self.mesh: list[Box] = []
        self.words: list[str] = []
        self._box: Box | None = None
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {name: value or "" for name, value in attrs}
        if tag == "td" and "background:" in known.get("style", "") and "title" in known:
            self._box = Box(known["title"], known["style"])
            (self.mesh if self._box.title.startswith("device") else self.parts).append(self._box)

    def handle_endtag(self, tag: str) -> None:
        if tag == "td":
            self._box = None

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self._box is not None and data.strip():
            self._box.lines.append(data)


def cell(array: ArrayInfo, processes: int, text: str = "") -> CellResult:
    bundle = {"text/plain": text} if text else {}
    info = ValueInfo("jaxlib.Array", b"", None, "", bundle, array)
    per_process = {i: ProcessResult(i, info, "", "", (), None, 0.1, 0.0) for i in range(processes)}
    return CellResult(1, "x", per_process, processes, 0.1)


def test_grid_in_text():
    assert card_array.array_card(array((4, 4), (2, 2))).text == (
        "float32[4, 4] · P('data') · mesh data 4 · 64 B, 16 B per device\n"
        "↓ dim 0 · 4, → dim 1 · 4\n"
        "       0:2    2:4\n"
        "  0:2  P0 d0  P0 d1\n"
        "  2:4  P1 d2  P1 d3\n"
        "  (P process, d device)\n"
        "  0  1  2  3\n"
        "  1  2  3  4\n"
        "  2  3  4  5\n"
        "  3  4  5  6"
    )


def test_holders_that_are_no_whole_processes_are_listed_one_by_one():
    shards = [ShardInfo(d, d // 2, ((d % 2 * 4, d % 2 * 4 + 4),), d // 2) for d in range(4)]
    card = card_array.array_card(replace(array((8,), (2,)), shards=tuple(shards)))
    assert "P0 d0, P1 d2 ×2" in card.text
    assert Pictures(card.html).parts[0].lines == ["P0 d0", "P1 d2", "×2", "0 1 2 3"]


@pytest.mark.parametrize(
    ("shape", "cuts"),
    [
        ((), ()),
        ((8, 8), (4, 2)),
        ((2, 4, 4, 8, 8), (2, 2, 1, 2, 2)),
        ((64, 64), (16, 16)),
        ((2, 1_000_000), (1, 8)),
        ((1_000_000, 2), (8, 1)),
        ((0, 4), (1, 2)),
    ],
)
def test_every_block_says_which_process_and_device(shape: tuple[int, ...], cuts: tuple[int, ...]):
    card = card_array.array_card(array(shape, cuts))
    found = Pictures(card.html).parts
    assert len(found) == prod(cuts)
    for box in found:
        process, device = re.findall(r"[Pd](\d+)", " ".join(box.lines))
        assert int(process) == int(device) // 2
        assert f"process {process} · device {device} · " in box.title


def test_a_row_for_each_combination_of_what_is_split_up_to_a_limit():
    card = card_array.array_card(array((4, 4, 8, 8), (2, 2, 1, 2)))
    assert {"0:2, 0:2", "0:2, 2:4", "2:4, 0:2", "2:4, 2:4"} <= set(Pictures(card.html).words)
    assert "not split: dim 2 · 8\n↓ dim 0 · 4, dim 1 · 4, → dim 3 · 8\n" in card.text
    assert "  2:4, 0:2  P2 d4  P2 d5\n" in card.text
    assert Pictures(card.html).parts[0].lines == ["P0", "d0"]
    for cuts, more in (((4, 4, 2, 2), 0), ((4, 4, 4, 4), 196)):
        card = card_array.array_card(array((4, 4, 8, 8), cuts))
        assert len(Pictures(card.html).parts) == prod(cuts) - more
        assert (f"… {more} more parts" in card.text) == (more > 0)
        assert max(map(len, card.text.splitlines())) <= 80


def test_axes_name_the_mesh_axis_that_splits_them():
    mesh = MeshInfo(("data", "model"), (4, 2), ("Auto", "Explicit"), tuple(range(8)))
    pictured = replace(array((8, 6), (4, 2)), mesh=mesh, axes=(("data",), ("model",)))
    shown = Pictures(card_array.array_card(pictured).html)
    assert {"0:2", "6:8", "0:3", "3:6"} <= set(shown.words)
    texts = ("↓ dim 0 · 8 over data", "→ dim 1 · 6 over model", "↓ data · 4 · Auto")
    for said in (*texts, "→ model · 2 · Explicit"):
        assert said in "|".join(shown.words)
    assert [box.lines for box in shown.mesh] == [[str(i)] for i in range(8)]
    unknown = replace(pictured, axes=None)
    assert "↓ dim 0 · 8, " in card_array.array_card(unknown).html


def test_uneven_parts_have_their_bytes_beside():
    cuts = [(0, 12), (12, 20), (20, 24)]
    shards = [ShardInfo(d, d, (cut,), 0) for d, cut in enumerate(cuts)]
    uneven = replace(array((24,), (1,)), shards=tuple(shards))
    card = card_array.array_card(uneven)
    assert "  device 1 · process 1   32 B" in card.text
    assert "width:66.67%" in card.html


@pytest.mark.parametrize(("page", "ink"), [((255,) * 3, (33,) * 3), ((17,) * 3, (222,) * 3)])
def test_labels_are_readable_on_every_colour(page: tuple[int, ...], ink: tuple[int, ...]):
    def luminance(color: tuple[float, ...]) -> float:
        parts = [c / 255 for c in color]
        red, green, blue = (
            part / 12.92 if part <= 0.04 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    assert "rgba(0,114,178,0.36)" in card_array.array_card(array((8,), (2,))).html
    for process in range(8):
        color = tint(process)
        parts = [int(part) for part in color.removeprefix("rgba(").split(",")[:3]]
        mixed = tuple(0.36 * t + 0.64 * p for t, p in zip(parts, page, strict=True))
        low, high = sorted([luminance(mixed), luminance(ink)])
        assert (high + 0.05) / (low + 0.05) >= 4.5, (process, color)
    assert len({tint(process) for process in range(8)}) == 8


def test_replicas_where_it_is_gone_are_not_counted():
    whole = array((8,), (1,), replicas=8, digest=lambda device: b"1")
    text = card_array.array_card(replace(whole, gone=(2,))).text
    assert "P0-1,3 d0-3,6-7 ×6" in text
    assert "6 replicas of the whole array (byte-compared)" in text
    split = replace(array((8,), (4,)), gone=(1,))  # nobody else has those
    assert "P1 d2" in card_array.array_card(split).text


def test_what_processes_have_each_for_themselves_are_copies():
    whole = replace(array((8,), (1,)), fully_addressable=True)
    shards = [tuple(ShardInfo(2 * i + k, i, ((0, 8),), k) for k in range(2)) for i in range(4)]
    own = [replace(whole, shards=each) for each in shards]
    text = card_array.array_card(each_its_own(own)).text
    assert "(P process, d device, × copies)" in text
    assert "process-local: each of 4 processes has its own" in text
    assert "32 B on each process" not in text  # it is on each device
    table = card_array.layout_card([("x", each_its_own(own))]).text
    assert "their values are not compared" in table
    alike = cell(own[0], 4, "Array(…)")
    for i, ran in alike.per_process.items():
        info = replace(ran.value_info, array=own[i], digest=b"same")
        alike.per_process[i] = replace(ran, value_info=info)
    assert "P0-3 d0-7 ×8" in card_value.value_card(alike).text


def test_a_thousand_parts_are_shortened_and_that_is_said():
    card = card_array.array_card(array((1024, 4), (1024, 1)))
    for shown in (card.text, card.html):
        assert "… 993 more parts" in shown
    assert len(card.html) < 30_000
    both = card_array.array_card(array((64, 64), (40, 40)))
    assert "… 1 375 more parts" in both.html
    assert len(both.html) < 150_000


TEXT = st.text(max_size=30)


@st.composite
def arrays(draw: st.DrawFn) -> ArrayInfo:
    shape = draw(st.lists(st.integers(0, 10**6), max_size=6))
    cuts = [draw(st.integers(1, max(1, min(size, 6)))) for size in shape]
    while prod(cuts) > 200:
        cuts[cuts.index(max(cuts))] = 1
    made = array(tuple(shape), tuple(cuts), draw(st.integers(1, 3)))
    scale = draw(st.sampled_from([1, 2048, 10**6]))
    shards = tuple(
        replace(s, device_id=s.device_id * scale, process_index=s.device_id % 7)
        for s in made.shards
    )
    names = tuple(draw(st.lists(TEXT, min_size=1, max_size=4, unique=True)))
    mesh = MeshInfo(names, (2,) * len(names), ("Auto",) * len(names), tuple(range(2 ** len(names))))
    entries = [draw(st.sampled_from([None, *names])) for _ in shape]
    spec = draw(st.sampled_from(["P(" + ", ".join(map(repr, entries)) + ")", None]))
    axes = tuple(() if entry is None else (entry,) for entry in entries) if spec else None
    corner = tuple((place, draw(TEXT)) for place, _ in made.corner[:4])
    return replace(
        made,
        shards=shards,
        spec=spec,
        axes=axes,
        mesh=mesh if spec else None,
        sharding=draw(TEXT) * 9,
        corner=draw(st.sampled_from([corner, made.corner])),
    )


@settings(max_examples=40)
@given(arrays())
def test_any_array_is_80_columns_and_well_formed(pictured: ArrayInfo):
    card = card_array.array_card(pictured)
    assert max(map(len, card.text.splitlines())) <= 80
    Tags(card.html)
    assert len(card.html) < 250_000


def test_deleted_arrays_say_so_and_show_no_values():
    text = card_array.array_card(replace(array((4,), (1,), 4), deleted=True)).text
    assert "deleted" in text
    for gone in ("0  1  2  3", " B", "replicas of"):
        assert gone not in text


def test_who_has_not_run_the_cell_may_hold_nothing():
    some = cell(array((8,), (8,)), 2)
    text = " ".join(card_value.value_card(some).text.split())
    assert text.endswith(
        "as processes 0-1 made it: processes 2-3 have not run the cell, and were not asked"
    )


def test_replicated_value_is_shown_once_with_its_layout():
    whole = array((2,), (1,), replicas=4, digest=lambda device: b"1")
    card = card_value.value_card(cell(whole, 2, "Array([0., 1.])"))
    assert card.text == (
        "Array([0., 1.])\n— float32[2] · P('data') · mesh data 4 · 8 B on each device\n"
        "  identical on 2 processes (byte-compared)\n→ dim 0 · 2\n    0:2\n    P0-1 d0-3 ×4\n"
        "  (P process, d device, × replicas)"
    )
    (part,) = Pictures(card.html).parts
    assert part.lines == ["P0-1", "d0-3", "×4"]
    assert "box-shadow" in part.style
    assert tint(0) not in part.style  # it is of no process alone
    unknown = replace(whole, shards=tuple(replace(s, digest=b"") for s in whole.shards))
    assert "not compared" in card_value.value_card(cell(unknown, 2, "x")).text


def test_replicas_that_differ_warn_and_name_the_processes():
    split = array((2,), (1,), replicas=8, digest=lambda device: b"a" if device < 2 else b"b")
    card = card_value.value_card(cell(split, 4, "Array([0., 1.])"))
    assert "Replicas differ in 1 part of float32[2]." in card.text
    assert "[0:2]  process 0 ≠ processes 1-3" in card.text
    assert f"border-left:3px solid {AMBER}" in card.html


def test_text_from_the_process_is_escaped():
    mesh = MeshInfo((EVIL,), (2,), (EVIL,), (0, 1))
    evil = {"dtype": EVIL, "spec": EVIL, "mesh": mesh, "memory_kind": EVIL}
    bad = replace(array((2,), (2,)), **evil, corner=(((0,), EVIL),))
    differing = array((2,), (1,), replicas=4, digest=lambda device: bytes([device]))
    made = [
        card_array.array_card(bad, EVIL),
        card_array.array_card(replace(bad, spec=None, mesh=None, sharding=EVIL)),
        card_value.value_card(cell(replace(differing, spec=EVIL, dtype=EVIL), 2, EVIL)),
        card_array.layout_card([(EVIL, leaf(**evil))]),
        card_array.layout_card([(EVIL, leaf(**evil)), (EVIL, leaf())]),
    ]
    for card in made:
        assert "script" not in Tags(card.html).seen
        assert "&lt;script" in card.html


@pytest.mark.parametrize(
    ("made", "said", "other"),
    [
        (Made(9, "created", "device_put", 2, 1, 3), "different host data", "shard_map"),
        (Made(9, "dispatch", "jit(step)", 2, 1, 3), "result of jit(step), dispatch 1 of cell [2], "
         "line 3. The usual cause: a `shard_map` with `check_vma=False`", "host data"),
        (Made(9, "created", f"f{OF_PARTS}result of jit(step)", 2, 1, 3), "from shards of: result "
         "of jit(step)", "host data"),
        (None, "different host data (an unseeded random number, another file); or a `shard_map`",
         "It is"),
    ],
    ids=["created", "dispatch", "of parts", "unknown"],
)  # fmt: skip
def test_what_came_out_of_an_agreed_dispatch_is_not_explained_as_host_data(
    made: Made | None, said: str, other: str
) -> None:
    source = None if made is None else Argument(0, "w", 9, made)
    unequal = array((2,), (1,), replicas=2, digest=lambda device: b"%d" % device)
    text = " ".join(card_array.replicas_differ_card(replace(unequal, source=source)).text.split())
    assert said in text
    assert other not in text


# ---------------------------------------------------------------------- trees of arrays


MESH = MeshInfo(("data", "model"), (2, 2), ("Auto", "Auto"), (0, 1, 2, 3))


def leaf(parts: int = 4, **changes: Any) -> ArrayInfo:
    """A matrix of 8 × 4, its rows in ``parts`` parts on four devices of two processes."""
    spec = "P(('data', 'model'), None)" if parts == 4 else "P()"
    made = replace(array((8, 4), (parts, 1), 4 // parts), spec=spec, mesh=MESH)
    return replace(made, **changes)


def test_a_table_with_totals():
    card = card_array.layout_card([("params.w", leaf()), ("params.b", leaf(1))], others=2)
    assert card.text == (
        "2 arrays · 256 B in all · mesh data 2 × model 2 · 2 leaves that are no jax.Array\n"
        "  path      type           spec                  total  per device  note\n"
        "  params.w  float32[8, 4]  P(('data', 'model'),  128 B        32 B\n"
        "                           None)\n"
        "  params.b  float32[8, 4]  P()                   128 B       128 B  replicated\n"
        "  all arrays together: 160 B on each of 4 devices"
    )
    for text in ("params.w", "float32[8, 4]", "replicated", "160 B on each of 4 devices"):
        assert text in card.html


def test_what_is_special_is_noted():
    other = MeshInfo(("x",), (4,), ("Auto",), (0, 1, 2, 3))
    local = leaf(1, fully_addressable=True, shards=(ShardInfo(0, 0, ((0, 8), (0, 4)), 0),),
                  mesh=None, spec=None, sharding="SingleDeviceSharding(device=0)")  # fmt: skip
    card = card_array.layout_card(
        [
            ("gone", leaf(deleted=True)),
            ("local", local),
            ("pinned", leaf(mesh=other, memory_kind="pinned_host")),
        ]
    )
    for note in ("deleted", "process-local", "in pinned_host", "SingleDeviceSharding"):
        assert note in card.html
    assert "mesh A: data 2 × model 2" in card.text
    assert "mesh B: x 4" in card.text
    # What is deleted takes no memory.
    assert "256 B in all" in card.text
    assert "32 B to 160 B on 4 devices" in card.text
    assert "  device 0 · process 0  160 B" in card.text
    assert "device 0 · process 0" in card.html


def test_long_tables_are_capped_and_that_is_said():
    names = ["".join(chr(97 + int(digit)) for digit in str(i)) for i in range(1_250)]
    card = card_array.layout_card([(f"layers.{name}.w", leaf()) for name in names])
    assert "1 250 arrays" in card.text
    assert "… 1 150 more arrays" in card.text
    assert "… 1 150 more arrays" in card.html
    assert len(card.html) < 50_000
    # All are counted.
    assert "39.1 KiB on each of 4 devices" in card.text


LONG_TEXT = st.text(max_size=120)


@given(
    st.lists(
        st.tuples(LONG_TEXT, st.sampled_from([1, 2, 4]), LONG_TEXT, LONG_TEXT, LONG_TEXT),
        max_size=5,
    )
)
def test_any_table_is_80_columns(entries: list[tuple[str, int, str, str, str]]):
    found = [
        (path, leaf(parts, spec=spec, dtype=dtype, memory_kind=kind))
        for path, parts, spec, dtype, kind in entries
    ]
    card = card_array.layout_card(found)
    assert max(map(len, card.text.splitlines())) <= 80


def test_many_arrays_fit_on_a_screen():
    kinds = {"w": array((8, 8), (4, 1)), "v": array((8, 4), (4, 1)), "b": array((8,), (1,), 4)}
    entries = [
        (f"p['layers'][{i}].{name}", one) for i in range(28) for name, one in kinds.items()
    ] + [("p['out'].w", kinds["w"])]
    text = card_array.layout_card(entries).text
    assert "85 arrays" in text
    assert len(text.split("\n")) < 20
    flat = text.replace("\n", " ")
    for name in kinds:
        assert re.search(rf"p.layers\S*\s+28 .*\.{name}", flat)
    few = card_array.layout_card(entries[:20]).text
    assert "[19" not in few
    assert len(few.split("\n")) > 20


def test_blocks_have_values_where_they_are_few():
    parts = Pictures(card_array.array_card(array((4, 4), (2, 2))).html).parts
    assert [part.lines for part in parts][:2] == [
        ["P0", "d0", "0 1", "1 2"],
        ["P0", "d1", "2 3", "3 4"],
    ]
    parts = Pictures(card_array.array_card(array((8, 4), (4, 1))).html).parts
    assert parts[0].lines == ["P0", "d0"]
