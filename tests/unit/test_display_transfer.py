"""Cards of what moves, and of arrays and values that have come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxnb.arrays import card_transfer
from jaxnb.arrays.card_transfer import leaves, type_of
from jaxnb.arrays.gathered import ArrayKey, GatheredArray
from jaxnb.arrays.lost import PerProcess
from jaxnb.model.arrays import ArrayInfo, MeshInfo, ShardInfo

MESH = MeshInfo(("x",), (2,), ("Auto",), (0, 8))


def info(**changes: Any) -> ArrayInfo:
    fields: dict[str, Any] = {
        "shape": (4, 2),
        "dtype": "float32",
        "itemsize_bits": 32,
        "sharding": "NamedSharding(…)",
        "spec": "P('x', None)",
        "mesh": MESH,
        "memory_kind": "device",
        "fully_replicated": False,
        "fully_addressable": False,
        "shards": (
            ShardInfo(0, 0, ((0, 2), (0, 2)), 0),
            ShardInfo(8, 1, ((2, 4), (0, 2)), 0),
        ),
        "corner": (),
        "deleted": False,
        "host_dtype": "float32",
        "word_shape": (),
    }
    return ArrayInfo(**(fields | changes))


class NoReader:
    """What must not be asked: a display fetches nothing."""

    generation = 0

    def read(self, wanted: Any) -> Any:
        raise AssertionError("something was fetched")


def gathered(index: Any = (), here: bool = False, **changes: Any) -> GatheredArray:
    described = info(**changes)
    array = GatheredArray(described, ArrayKey("h", 0, "x", "x", (0, 1), 0), NoReader())
    region = array.wanted().region[index]
    array = GatheredArray(described, ArrayKey("h", 0, "x", "x", (0, 1), 0), NoReader(), region)
    if here:
        whole = np.arange(8, dtype=np.float32).reshape(4, 2)
        array.keep(whole[index].copy())
    return array


def test_an_array_that_is_here_shows_its_values() -> None:
    card = card_transfer.gathered_card(gathered(here=True))
    assert card.text.splitlines() == [
        "float32[4, 2] · P('x', None) · mesh x 2 · 32 B, 16 B per device",
        "[[0., 1.],",
        " [2., 3.],",
        " [4., 5.],",
        " [6., 7.]]",
    ]
    assert "[6., 7.]]" in card.html
    assert "until used" not in card.html


def test_an_array_that_is_there_shows_its_corners() -> None:
    corner = tuple(((i, j), f"{i}{j}!") for i in range(4) for j in range(2))
    card = card_transfer.gathered_card(gathered(corner=corner))
    assert "31!" in card.text
    assert "31!" in card.html
    assert card.text.endswith("\n— data stay on the processes until used")
    without = card_transfer.gathered_card(gathered())
    assert len(without.text.splitlines()) == 2


def test_a_slice_says_what_it_is() -> None:
    card = card_transfer.gathered_card(gathered(np.s_[1:3, 0], here=True))
    assert card.text.splitlines()[0].startswith("x[1:3, 0], shape (2,), of float32[4, 2] · P('x'")
    assert card.text.splitlines()[-1] == "[2., 4.]"
    assert "x[1:3, 0], shape (2,), of" in card.html
    # Corners are of the whole array.
    corner = (((0, 0), "0!"),)
    there = card_transfer.gathered_card(gathered(np.s_[1:3, 0], corner=corner))
    assert "0!" not in there.text + there.html


def test_a_deleted_array() -> None:
    card = card_transfer.gathered_card(gathered(deleted=True))
    assert "deleted: its buffers" in card.html


def test_it_says_after_which_cell_it_was_pulled() -> None:
    card = card_transfer.gathered_card(gathered(here=True), "pulled <b>after</b>")
    assert "— pulled <b>after</b>" in card.text
    assert "<b>after" not in card.html
    there = card_transfer.gathered_card(gathered(), "pulled after cell [3]")
    assert "until used, and while it is there: pulled after cell [3]" in " ".join(
        there.text.split()
    )


def test_what_went_with_its_processes_is_said_to_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NoReader, "generation", 1)
    card = card_transfer.gathered_card(gathered())
    assert "its data are gone with the processes" in " ".join(card.text.split())
    assert "until used" not in card.html


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (gathered(), "float32[4, 2]"),
        (gathered(np.s_[0]), "float32[2]"),
        (np.zeros((2, 3)), "NumPy float64[2, 3]"),
        (3, "int 3"),
        (None, "NoneType None"),
        ("a" * 100, "str '" + "a" * 38 + "…"),
        ([1, 2], "list"),
        ({"a": np.zeros(1), "b": [gathered()]}, "dict of 2 arrays"),
        (PerProcess({0: 1, 1: 2}), "int by process"),
        (PerProcess({0: np.zeros(2), 1: np.ones(2)}), "NumPy float64[2] by process"),
        (PerProcess({0: 1, 1: "a"}), "int or str by process"),
    ],
)
def test_what_a_value_is(value: Any, text: str) -> None:
    assert type_of(value) == text


def test_a_container_that_holds_itself() -> None:
    value: list[Any] = [np.zeros(1)]
    value += [value, {"again": value}]
    assert len(leaves(value)) == 1


def test_narrowed_dtypes() -> None:
    value = {"w": np.zeros(1), "n": [np.zeros(1, np.int64)], "f": np.zeros(1, np.float32)}
    assert card_transfer.narrowed(value, {"float32", "int32"}) == (
        "float64 → float32, int64 → int32: jax_enable_x64 is off",
    )
    assert card_transfer.narrowed(value, {"float64", "int64", "float32"}) == ()
    assert card_transfer.narrowed(3.0, {"float32"}) == ()


def test_one_value() -> None:
    rows = [card_transfer.moved("x", gathered(), "a note")]
    card = card_transfer.moved_card(rows, "pulled", 32 << 20, 0.5)
    assert card.text == (
        "x: float32[4, 2] · P('x', None) · 32 B · pulled · 0.50 s · 64.0 MiB/s\n  a note"
    )
    assert ">a note</div>" in card.html


def test_several_values_with_the_same_note() -> None:
    rows = [card_transfer.moved(name, np.zeros(2), "the same") for name in "ab"]
    lines = card_transfer.moved_card(rows, "pushed to 2 processes", 0, 0.01).text.splitlines()
    assert lines == [
        "2 values · 32 B · pushed to 2 processes · 10 ms",
        "  a  NumPy float64[2]    16 B",
        "  b  NumPy float64[2]    16 B",
        "  a, b: the same",
    ]


def test_an_array_of_several_processes_counts_once() -> None:
    one, other = np.zeros(256, np.float32), np.ones(256, np.float32)
    found = card_transfer.moved("x", PerProcess({0: one, 1: one, 2: other, 3: other}))
    assert found.size_bytes == one.nbytes + other.nbytes


def test_names_and_values_stay_text() -> None:
    rows = [card_transfer.moved("<i>", "<b>"), card_transfer.moved("y", {}, "<u>")]
    for card in (
        card_transfer.moved_card(rows, "<s>", 0, 0.1),
        card_transfer.moved_card(rows[:1], "<s>", 0, 0.1),
    ):
        assert not any(tag in card.html for tag in ("<i>", "<b>'", "<u>", "<s>"))


def test_values_by_process() -> None:
    bundles = [(0, {"text/plain": "1"}), (1, {"text/plain": "<b>"}), (2, {"text/plain": "1"})]
    card = card_transfer.per_process_card(bundles)
    assert card.text == "[0,2] 1\n[1]   <b>"
    assert "<b>" not in card.html.replace("<b></b>", "")
    rich = card_transfer.per_process_card(
        [(0, {"text/html": "<table></table>", "text/plain": "t"})]
    )
    assert "<table></table>" in rich.html
