"""What sentences call the code that runs, in the processes of ``jaxnb run``."""

from __future__ import annotations

import pytest

from jaxnb.lockstep.provenance import origin_text
from jaxnb.model import scripts
from jaxnb.model.dispatches import Dispatch, Made
from jaxnb.session.reasons import silent_text

MADE = Made(3, "dispatch", "jit(step)", 12, 7, 2)


def test_sentences_about_cells_speak_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    in_cell = silent_text([0], {}, 5.0, caught=True, press="Ctrl-C")
    assert "end the cell either, it is ended by force, and new processes take" in in_cell
    assert scripts.cell_label(12) == "cell [12]"
    monkeypatch.setattr(scripts, "_script", "")
    scripts.begin_script("train.py")
    assert origin_text(MADE, 3) == "result of jit(step), dispatch 7 of train.py, line 2"
    assert (
        str(Dispatch(1, "jit(f)", 0, None, None, (0, 1), None, 0.0))
        == "jit(f) outside the script's lines"
    )
    said = silent_text([0, 1], {}, 5.0, caught=True, press="Ctrl-C")
    assert said.endswith("to end the script: they are ended by force.")
