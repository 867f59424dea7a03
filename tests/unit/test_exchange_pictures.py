"""What collectives are drawn to do, and the bytes that go from device to device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

import jaxnb
from jaxnb.compiled.collectives import joined_by
from jaxnb.errors import UsageError
from jaxnb.model.arrays import MeshInfo
from jaxnb.model.compiled import Collective, CollectiveKind, CompiledReport, Part
from jaxnb.pictures.card_matrix import moves_card
from jaxnb.pictures.exchange import Piece, line_of, links, matrix, play, sent_bytes

KINDS = get_args(CollectiveKind)


def collective(kind: Any, *groups: tuple[int, ...], nbytes: int = 4096) -> Collective:
    size = max(map(len, groups))
    sent = sent_bytes(kind, nbytes, size)
    part = Part("float32", (nbytes // 4,), nbytes)
    axes, pairs = ("x",), [(s, t) for g in groups for s, t in zip(g, (*g[1:], g[0]), strict=True)]
    return Collective(kind, axes, True, groups, (part,), sent, sent, 1,
                      pairs=tuple(pairs) if kind == "collective-permute" else ())  # fmt: skip


def report(*found: Collective, shape: tuple[int, ...] = (8,)) -> CompiledReport:
    count = int(np.prod(shape))
    mesh = MeshInfo(tuple("xyz"[: len(shape)]), shape, ("Auto",) * len(shape), tuple(range(count)))
    return CompiledReport("f", "cpu", count, (mesh,), found, devices=tuple(range(count)))


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_what_devices_have_after_a_collective(size: int) -> None:
    everyone = frozenset(range(size))
    for d in range(size):
        sums = tuple(Piece(everyone, k) for k in range(size))
        assert play("all-reduce", size).after[d] == sums
        assert play("reduce-scatter", size).after[d] == (sums[d],)
        assert play("all-gather", size).after[d] == tuple(
            Piece(frozenset({k})) for k in range(size)
        )
        whose = tuple(Piece(frozenset({k}), d) for k in range(size))
        assert play("all-to-all", size).after[d] == whose
        assert play("collective-permute", size).after[d] == (Piece(frozenset({(d - 1) % size})),)
    assert play("collective-permute", size, is_ring=False).after[0] == (None,)


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "collective-broadcast"])
@pytest.mark.parametrize("size", [2, 3, 8])
def test_each_device_sends_what_the_steps_take_and_what_the_matrix_has(
    kind: CollectiveKind, size: int
) -> None:
    each = collective(kind, tuple(range(size)), nbytes=size * 480)
    parts = {"collective-permute": 1, "reduce-scatter": 1}.get(kind, size)  # of its result
    for d in range(size):
        sends = sum(arrival.source == d for step in play(kind, size).steps for arrival in step)
        assert sends * size * 480 == each.bytes * parts
    assert set(matrix(report(each, shape=(size,))).sum(axis=1)) == {each.bytes}


def test_a_matrix_adds_up_what_is_run_often_and_rounds_up() -> None:
    odd = replace(collective("all-to-all", (0, 1, 2), nbytes=20), count=5)
    sent = matrix(report(odd, shape=(3,)))
    assert set(sent.sum(axis=1)) == {5 * 14}  # 2/3 × 20 = 13.3
    assert [*links(odd, (2,))] == []


def test_from_32_devices_on_it_is_drawn_by_axis() -> None:
    groups = np.arange(256).reshape(16, 16).T  # along x
    card = moves_card(report(collective("all-reduce", *map(tuple, groups)), shape=(16, 16)))
    assert "along x (size 16)" in card.text
    assert "d0: 7.50 KiB to d16" in card.text
    large = collective("all-to-all", tuple(range(256)), nbytes=1 << 20)
    assert "4.00 KiB to the one 1 further" in moves_card(report(large, shape=(256,))).text
    assert moves_card(report(shape=(1,))).text == "f · nothing moves between devices"


SCATTERED = """\
psum_scatter over data · mesh data 4
          a · d0   b · d1       c · d2           d · d3
  before  1 2 3 4  10 20 30 40  100 200 300 400  1000 2000 3000 4000
  step 1  d→ 3003  a→ 44        b→ 110           c→ 2200
  step 2  d→ 2202  a→ 3033      b→ 444           c→ 1110
  step 3  d→ 1111  a→ 2222      b→ 3333          c→ 4444
  after   1111     2222         3333             4444
Every device gets its own part of the sum Σ: parts are summed on their way
around. Each step: from which device, and the sum so far."""


def test_a_collective_is_drawn_without_a_group() -> None:
    values = np.outer([1, 10, 100, 1000], [1, 2, 3, 4])
    card = jaxnb.picture("psum_scatter", mesh_shape={"data": 4}, axis="data", values=values)
    assert str(card) == SCATTERED
    assert "d→ 2202</td>" in card.html
    assert "d→ Σ0" in str(jaxnb.picture("psum", mesh_shape=(4,), axis=0))
    first = str(jaxnb.picture("all_gather", mesh_shape=(2, 4), axis="x"))
    assert "the first of 4 groups of 2 devices" in first
    assert "a · d0  b · d4" in first
    assert str(jaxnb.picture("psum", mesh_shape=4, axis=0)) == str(
        jaxnb.picture("psum", mesh_shape=np.array([4]), axis="x")
    )
    for name in ("psum", "all_gather", "psum_scatter", "all_to_all", "ppermute"):
        for size in (1, 2, 8, 256):
            text = str(jaxnb.picture(name, mesh_shape=(size,), axis=0))
            assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"collective": "pmean"}, "Unknown collective 'pmean'"),
        ({"axis": "y"}, "Unknown axis 'y'"),
        ({"axis": 3}, "Unknown axis '3'"),
        ({"mesh_shape": ()}, "A mesh has a size"),
        ({"mesh_shape": (2, 0)}, "A mesh has a size"),
        ({"mesh_shape": (2,) * 5}, "up to four without names"),
        ({"mesh_shape": (4096,) * 3}, "at most 65536 devices"),
        ({"values": [1, 2]}, "for each of the 4 devices"),
        ({"values": ["a"] * 4}, "for each of the 4 devices"),
        ({"values": [[1], [1, 2], [1], [1]]}, "for each of the 4 devices"),
        ({"collective": "psum_scatter", "values": [[1, 2, 3]] * 4}, "cannot be cut into 4"),
    ],
)
def test_what_cannot_be_drawn_is_told(changed: dict[str, Any], said: str) -> None:
    asked = {"collective": "psum", "mesh_shape": (4,), "axis": 0, **changed}
    with pytest.raises(UsageError, match=said):
        jaxnb.picture(asked.pop("collective"), **asked)


def permute(*pairs: tuple[int, int], nbytes: int = 4096) -> Collective:
    made = collective("collective-permute", *joined_by(pairs), nbytes=nbytes)
    return replace(made, pairs=pairs)


@pytest.mark.parametrize(
    "pairs", [[(i, i ^ 1) for i in range(32)], [(i, i + 1) for i in range(1, 31)]]
)
def test_a_line_has_all_that_is_sent_along_it(pairs: list[tuple[int, int]]) -> None:
    made = report(permute(*pairs), shape=(32,))
    _, sent = line_of(made, made.meshes[0], "x")
    assert [*zip(*np.nonzero(sent), strict=True)] == pairs
    assert " sends · 4.00 KiB to the one 1 further" in moves_card(made).text


def test_from_32_devices_on_each_mesh_is_drawn_and_what_is_not_is_told() -> None:
    other = MeshInfo(("p", "q"), (4, 8), ("Auto", "Auto"), tuple(range(32)))
    along = replace(collective("all-reduce", *map(tuple, np.arange(32).reshape(4, 8))), axes=("q",))
    over_all = replace(collective("all-reduce", tuple(range(32))), axes=("p", "q"))
    one = report(along, shape=(32,))
    text = moves_card(replace(one, meshes=(*one.meshes, other))).text
    assert "along q (size 8)" in text
    assert "in the mesh p 4 × q 8" in text
    assert ".matrix()" not in text
    assert ".matrix()" in moves_card(report(over_all, shape=(32,))).text


def test_groups_of_different_sizes_and_what_sends_nothing() -> None:
    text = moves_card(report(permute((0, 1), (2, 3), (3, 4)))).text
    assert "the largest of 2 groups: 3 devices" in text
    nothing, much = (collective("all-reduce", tuple(range(8)), nbytes=n) for n in (0, 4096))
    assert "each device sends 7.00 KiB" in moves_card(report(nothing, much)).text


def test_a_matrix_has_a_unit_that_its_numbers_fit() -> None:
    text = moves_card(report(permute((0, 1), nbytes=1000 << 10))).text
    assert "d0  ·  0.977" in text
