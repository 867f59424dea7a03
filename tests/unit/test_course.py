"""Exercises: what is compared, what a card says, and which files `jaxnb course` writes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxnb import course
from jaxnb.course import writing
from jaxnb.course.judging import differences, summary
from jaxnb.course.messages import Answer, Leaf, Shard
from jaxnb.course.verdict import Verdict
from jaxnb.errors import UsageError
from support.cards import EVIL, Tags
from support.course import SOLUTIONS, parts

WANT = np.arange(8, dtype=np.float32).reshape(4, 2)


def leaf(data: Any, rows: slice = np.s_[:], **changes: Any) -> Leaf:
    """Returns what a process reports of an array, of which it holds some rows on a device."""
    array = np.asarray(data)
    start, stop, _ = rows.indices(len(array))
    index = ((start, stop), *((0, n) for n in array.shape[1:]))
    facts = {
        "type_name": "jax.Array",
        "dtype": str(array.dtype),
        "shape": array.shape,
        "sharding": "P('i')",
        "is_own": False,
        "is_laid_out": True,
        "shards": (Shard(2048, index, array[rows]),),
    }
    return Leaf(**{**facts, **changes})


def found(leaves: Mapping[str, Leaf], want: Any = WANT, **settings: Any) -> list[Any]:
    settings.setdefault("own", False)
    return differences({1: Answer(dict(leaves))}, want, 1e-5, **settings)


def test_equal_values_have_no_difference() -> None:
    assert found({"": leaf(WANT, np.s_[2:4])}) == []
    assert found({"": leaf(WANT + 1e-7)}) == []
    assert found({"['a'][0]": leaf(WANT)}, {"a": [WANT.astype(np.float64)]}) == []


def test_the_first_row_that_differs_is_named() -> None:
    wide = np.zeros((4, 20), np.float32)
    other = wide.copy()
    other[3, 5] = np.nan
    (difference,) = found({"": leaf(other, np.s_[2:4])}, wide)
    assert (difference.process, difference.device, difference.where) == (1, 2048, "[3, 0:20]")
    assert difference.has == "[ 0.,  0.,  0.,  0.,  0., nan,  0.,  0., …]"
    assert summary([difference]) == "On process 1, the answer has other values"


@pytest.mark.parametrize(
    ("leaves", "what", "has", "wanted"),
    [
        ({}, "has another structure", "nothing (None)", "one array"),
        ({"[0]": leaf(WANT)}, "has another structure", "answer[0]", "one array"),
        ({"": leaf(WANT[:2])}, "has another shape, all devices' parts together",
         "(2, 2)", "(4, 2)"),
        ({"": leaf(WANT, dtype="bfloat16")}, "has another dtype", "bfloat16", "float32"),
        ({"": leaf(WANT, dtype="float64")}, "has another dtype", "float64", "float32"),
        ({"": leaf(WANT, type_name="function", dtype="", shards=())}, "is not an array",
         "function", "an array"),
        ({"": leaf(WANT, is_own=True)},
         "is an array of each process alone, not one array over all processes", "P('i')", ""),
    ],
)  # fmt: skip
def test_what_else_may_differ(leaves: Mapping[str, Leaf], what: str, has: str, wanted: str) -> None:
    (difference,) = found(leaves)
    assert (difference.what, difference.has, difference.wanted) == (what, has, wanted)


def test_an_answer_may_be_each_process_s_own() -> None:
    assert found({"": leaf(WANT, is_own=True)}, own=True) == []
    text = leaf([0], dtype="", shape=(), shards=(Shard(None, (), np.asarray("data")),))
    assert found({"": text}, "data", own=True) == []
    assert found({"": text}, "model", own=True)[0].has == "data"


def test_each_exercise_has_a_solution_and_each_known_mistake_its_code() -> None:
    exercises = course.exercises()
    assert len(exercises) >= 50
    assert parts(SOLUTIONS).keys() == exercises.keys()
    wrong = {f"{each.name}: {wrong.name}" for each in exercises.values() for wrong in each.wrong}
    assert parts(SOLUTIONS / "wrong").keys() == wrong
    assert len({each.define for each in exercises.values()}) == len(exercises)
    for name, each in exercises.items():
        assert each.wrong, name
        assert each.hints, name
        assert name.isidentifier()
        assert each.task.endswith(".")
        assert re.search(rf"\b{each.define}\b", each.setup + each.call), name


def test_each_exercise_is_in_one_notebook() -> None:
    named = []
    for name, data in writing.course_files(solutions=False).items():
        if name.endswith(".ipynb"):
            named += sorted(set(re.findall(r"\bcourse\.(\w+)", data.decode())))
    assert sorted(named) == sorted(course.exercises())


def test_exercises_are_found_by_name_and_listed() -> None:
    assert course.all_gather is course.exercises()["all_gather"]
    assert "all_gather" in dir(course)
    with pytest.raises(
        AttributeError, match=r"There is no exercise 'all_gater'\. Did you mean 'all_gather'"
    ):
        _ = course.all_gater
    shown = course._repr_mimebundle_()
    assert shown["text/plain"].startswith("collectives · 0 of ")
    assert shown["text/html"].count("<details") == 5
    assert "course.all_gather" in shown["text/html"]
    card = course.all_gather._repr_mimebundle_()["text/plain"]
    assert "def my_all_gather(x, axis):" in card
    assert "each device sends at most 112 B" in card


def test_a_verdict_s_hint_is_folded_and_its_text_escaped() -> None:
    verdict = Verdict(f"said {EVIL}", hint=f"think {EVIL}", printed=EVIL, name="n")
    assert not verdict
    tags = Tags(verdict.card.html)
    assert "details" in tags.seen
    assert "script" not in tags.seen
    assert "think" not in str(verdict)
    assert "Call its method `hint()` for a hint." in str(verdict)
    assert len(str(Verdict("said", printed="y" * 200_000))) < 1000
    passed = Verdict("equal", passed=True, sent=112, budget=128, name="n")
    assert str(passed).startswith("✓ n · equal · each device sends 112 B of 128 B")
    assert passed


# ------------------------------------------------------------------------------ jaxnb course DIR


def test_the_course_is_written_without_solutions(tmp_path: Path) -> None:
    folder = tmp_path / "course"
    writing.write_course(folder)
    written = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert written == {*writing.course_files(solutions=False), writing.WRITTEN}
    assert not (folder / "solutions").exists()
    assert "No new" not in (said := writing.write_course(folder, solutions=True))
    assert said.startswith("10 files of solutions written to")
    assert (folder / "solutions" / "collectives.py").exists()
    assert (folder / "solutions" / "wrong" / "collectives.py").exists()


def test_what_was_changed_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    monkeypatch.setattr(writing, "_CHECKOUT", source)
    monkeypatch.setattr(writing, "_INSTALLED", tmp_path / "nowhere")
    (source / "01_a.ipynb").write_text("{}")
    (source / "02_b.ipynb").write_text("{}")
    folder = tmp_path / "mine"
    assert "2 notebooks written" in writing.write_course(folder)
    (source / "01_a.ipynb").write_text('{"newer": 1}')
    writing.write_course(folder)
    assert (folder / "01_a.ipynb").read_text() == '{"newer": 1}'
    (folder / "02_b.ipynb").write_text('{"answer": 1}')
    assert "No new version of any file was written" in writing.write_course(folder)
    (source / "01_a.ipynb").write_text('{"newest": 1}')
    (source / "02_b.ipynb").write_text('{"newest": 1}')
    with pytest.raises(UsageError, match=r"or not of the course: 02_b\.ipynb\. Nothing was"):
        writing.write_course(folder)
    assert (folder / "01_a.ipynb").read_text() == '{"newer": 1}'
    assert json.loads((folder / "02_b.ipynb").read_text()) == {"answer": 1}


def test_a_notebook_that_was_only_run_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, folder = tmp_path / "source", tmp_path / "mine"
    source.mkdir()
    monkeypatch.setattr(writing, "_CHECKOUT", source)
    monkeypatch.setattr(writing, "_INSTALLED", tmp_path / "nowhere")

    def notebook(code: str, outputs: int) -> str:
        cell = {"cell_type": "code", "source": [code], "outputs": ["text"] * outputs}
        return json.dumps({"cells": [cell], "metadata": {"run": outputs}})

    (source / "01_a.ipynb").write_text(notebook("1 + 1", 0))
    writing.write_course(folder)
    (folder / "01_a.ipynb").write_text(notebook("1 + 1", 1))
    writing.write_course(folder)
    assert (folder / "01_a.ipynb").read_text() == notebook("1 + 1", 1)
    (source / "01_a.ipynb").write_text(notebook("1 + 2", 0))
    assert "1 notebook written" in writing.write_course(folder)
    assert (folder / "01_a.ipynb").read_text() == notebook("1 + 2", 0)


@pytest.mark.parametrize("record", ["{", "[1]", "\udcff"])
def test_a_damaged_record_is_named(record: str, tmp_path: Path) -> None:
    (tmp_path / writing.WRITTEN).write_bytes(record.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match=r"is damaged\. Nothing was written\. Delete it"):
        writing.write_course(tmp_path)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file is not a folder\. Nothing was written"):
        writing.write_course(tmp_path / "file")


def test_the_command_line_says_what_was_not_written(tmp_path: Path) -> None:
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / "collectives.py").write_text("mine")
    command = [sys.executable, "-m", "jaxnb", "course", str(tmp_path), "--solutions"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("jaxnb: Changed since `jaxnb course` wrote to ")
    assert "or not of the course: solutions/collectives.py." in done.stderr
    assert "Nothing was written" in done.stderr
    assert (tmp_path / "solutions" / "collectives.py").read_text() == "mine"
