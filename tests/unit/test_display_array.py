"""Cards of arrays: who owns which part, in HTML and in 80 columns of text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import prod

import pytest

from jaxnb.arrays import edge_indices
from jaxnb.display import cards
from jaxnb.display._picture import panels
from jaxnb.model import ArrayInfo, MeshInfo, ShardInfo, ValueInfo
from jaxnb.result import CellResult, ProcessResult


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
    places = product(*(edge_indices(size) for size in shape))
    corner = tuple((place, str(sum(place))) for place in places)
    count = len(shards)
    mesh = MeshInfo(("data",), (count,), ("Auto",), tuple(range(count)))
    whole = prod(cuts) == 1
    return ArrayInfo(
        shape, "float32", 32, "", "P('data')", mesh, "device", whole, False, tuple(shards), corner
    )


def cell(array: ArrayInfo, processes: int, text: str = "") -> CellResult:
    bundle = {"text/plain": text} if text else {}
    info = ValueInfo("jaxlib.Array", b"", None, "", bundle, array)
    per_process = {i: ProcessResult(i, info, "", "", (), None, 0.1, 0.0) for i in range(processes)}
    return CellResult(1, "x", per_process, processes, 0.1)


def test_grid_in_text():
    assert cards.array_card(array((4, 4), (2, 2))).text == (
        "float32[4, 4] · P('data') · mesh data 4 · 64 B, 16 B per device\n"
        "       0:2    2:4\n"
        "  0:2  P0 d0  P0 d1\n"
        "  2:4  P1 d2  P1 d3\n"
        "  (P process, d device)\n"
        "  0  1  2  3\n"
        "  1  2  3  4\n"
        "  2  3  4  5\n"
        "  3  4  5  6"
    )


def test_replicas_are_labelled():
    card = cards.array_card(array((8,), (2,), replicas=2, digest=lambda device: b"1"))
    assert "2 replicas of each part, bytes compared" in card.text
    assert "2 replicas</small>" in card.html
    assert "P0 d0-1" in card.text


@pytest.mark.parametrize(
    ("shape", "cuts", "found", "more"),
    [
        ((), (), 1, 0),
        ((8,), (8,), 1, 0),
        ((8, 8), (4, 2), 1, 0),
        ((4, 8, 8), (4, 2, 1), 4, 0),
        ((4, 4, 8, 8), (4, 4, 1, 1), 8, 8),
    ],
)
def test_panels_of_any_number_of_dimensions(
    shape: tuple[int, ...], cuts: tuple[int, ...], found: int, more: int
):
    pictured, left_out = panels(array(shape, cuts))
    assert (len(pictured), left_out) == (found, more)
    owned = [c for panel in pictured for _, row in panel.rows for c in row]
    assert len({cell.device_label for cell in owned}) == prod(cuts) - more
    card = cards.array_card(array(shape, cuts))
    assert max(map(len, card.text.splitlines())) <= 80


def test_a_thousand_parts_are_shortened_and_that_is_said():
    card = cards.array_card(array((1024, 4), (1024, 1)))
    assert "… 1 009 more parts" in card.text
    assert "… 1 009 more parts" in card.html
    assert len(card.html) < 10_000
    assert max(map(len, card.text.splitlines())) <= 80


def test_deleted_arrays_say_so_and_show_no_values():
    card = cards.array_card(replace(array((4,), (2,)), deleted=True))
    assert "deleted" in card.text
    assert "0  1  2  3" not in card.text


def test_an_empty_array():
    card = cards.array_card(array((0, 4), (1, 1)))
    assert "float32[0, 4]" in card.text
    assert "0 B" in card.text


def test_sharded_value_is_an_array_card():
    card = cards.value_card(cell(array((8,), (4,)), 2))
    assert card.text.startswith("float32[8] · P('data')")
    assert "hsl(" in card.html


def test_replicated_value_is_shown_once_with_its_layout():
    whole = array((2,), (1,), replicas=4, digest=lambda device: b"1")
    card = cards.value_card(cell(whole, 2, "Array([0., 1.])"))
    assert card.text == (
        "Array([0., 1.])\n— float32[2] · P('data') · mesh data 4 · 8 B on each device\n"
        "  same on 2 processes, bytes compared"
    )
    unknown = replace(whole, shards=tuple(replace(s, digest=b"") for s in whole.shards))
    assert "bytes not compared" in cards.value_card(cell(unknown, 2, "x")).text


def test_replicas_that_differ_warn_and_name_the_processes():
    split = array((2,), (1,), replicas=8, digest=lambda device: b"a" if device < 2 else b"b")
    card = cards.value_card(cell(split, 4, "Array([0., 1.])"))
    assert "Replicas differ in 1 part of float32[2]." in card.text
    assert "[0:2]  [0] ≠ [1-3]" in card.text
    assert "jaxnb-warn" in card.html


def test_text_from_the_process_is_escaped():
    evil = "<script>alert(1)</script>"
    mesh = MeshInfo((evil,), (2,), ("Auto",), (0, 1))
    bad = replace(
        array((2,), (2,)),
        dtype=evil,
        spec=evil,
        mesh=mesh,
        memory_kind=evil,
        corner=(((0,), evil),),
    )
    differing = array((2,), (1,), replicas=4, digest=lambda device: bytes([device]))
    made = [
        cards.array_card(bad, evil),
        cards.array_card(replace(bad, spec=None, mesh=None, sharding=evil)),
        cards.value_card(cell(replace(differing, spec=evil, dtype=evil), 2, evil)),
    ]
    for card in made:
        assert "<script" not in card.html
        assert "&lt;script" in card.html
