"""The card of a pytree of arrays: a table, in HTML and in 80 columns of text."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from jaxnb.arrays import card_array
from jaxnb.model.arrays import ArrayInfo, MeshInfo, ShardInfo

MESH = MeshInfo(("data", "model"), (2, 2), ("Auto", "Auto"), (0, 1, 2, 3))
EVIL = "<script>alert(1)</script>"


def array(parts: int = 4, **changes: object) -> ArrayInfo:
    """A matrix of 8 × 4, its rows in ``parts`` parts on four devices of two processes."""
    rows = 8 // parts
    shards = tuple(
        ShardInfo(d, d // 2, ((d % parts * rows, (d % parts + 1) * rows), (0, 4)), d // parts)
        for d in range(4)
    )
    spec = "P(('data', 'model'), None)" if parts == 4 else "P()"
    whole = ArrayInfo(
        (8, 4), "float32", 32, "", spec, MESH, "device", parts == 1, False, shards
    )  # fmt: skip
    return replace(whole, **changes)  # type: ignore[arg-type]


def test_a_table_with_totals():
    card = card_array.layout_card([("params.w", array()), ("params.b", array(1))], others=2)
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


def test_one_array_is_shown_with_its_picture():
    card = card_array.layout_card([("params.w", array())], others=1)
    assert card.text.startswith("params.w: float32[8, 4] · P(('data', 'model'), None)")
    assert "and 1 leaf that is no jax.Array" in card.text
    assert "process 0 · device 0 · " in card.html


def test_no_arrays():
    assert card_array.layout_card([], others=2).text == "no arrays · 2 leaves that are no jax.Array"
    assert card_array.layout_card([]).text == "no arrays"


def test_what_is_special_is_noted():
    other = MeshInfo(("x",), (4,), ("Auto",), (0, 1, 2, 3))
    local = array(1, fully_addressable=True, shards=(ShardInfo(0, 0, ((0, 8), (0, 4)), 0),),
                  mesh=None, spec=None, sharding="SingleDeviceSharding(device=0)")  # fmt: skip
    card = card_array.layout_card(
        [
            ("gone", array(deleted=True)),
            ("local", local),
            ("pinned", array(mesh=other, memory_kind="pinned_host")),
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
    card = card_array.layout_card([(f"layers[{i}].w", array()) for i in range(1_250)])
    assert "1 250 arrays" in card.text
    assert "… 1 150 more arrays" in card.text
    assert "… 1 150 more arrays" in card.html
    assert len(card.html) < 50_000
    # All are counted.
    assert "39.1 KiB on each of 4 devices" in card.text


def test_long_paths_are_shortened_in_the_middle():
    path = "opt_state[0].mu" + "['encoder']" * 9 + "['kernel']"
    card = card_array.layout_card([(path, array()), ("step", array(1))])
    assert max(map(len, card.text.splitlines())) <= 80
    assert "opt_" in card.text
    assert "el']" in card.text
    assert "encoder'" in card.html


def test_text_from_the_process_is_escaped():
    mesh = MeshInfo((EVIL,), (4,), (EVIL,), (0, 1, 2, 3))
    bad = array(dtype=EVIL, spec=EVIL, mesh=mesh, memory_kind=EVIL)
    for entries in ([(EVIL, bad)], [(EVIL, bad), (EVIL, array())]):
        card = card_array.layout_card(entries)
        assert "<script" not in card.html
        assert "&lt;script" in card.html


TEXT = st.text(max_size=120)


@given(st.lists(st.tuples(TEXT, st.sampled_from([1, 2, 4]), TEXT, TEXT, TEXT), max_size=5))
def test_any_table_is_80_columns(entries: list[tuple[str, int, str, str, str]]):
    found = [
        (path, array(parts, spec=spec, dtype=dtype, memory_kind=kind))
        for path, parts, spec, dtype, kind in entries
    ]
    card = card_array.layout_card(found)
    assert max(map(len, card.text.splitlines())) <= 80
