"""A process that answers, with an error, is not silent: nothing is ended, nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from faults.shared import assert_kept
from jaxnb.errors import JaxnbError
from jaxnb.session import Session


def test_variables_outlive_a_packing_that_raises(
    make_session: Callable[..., Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mmap", "statistics", "fractions", "pickle", "queue"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('of the user')")
    monkeypatch.chdir(tmp_path)
    session = make_session(2)
    pids = [each.pid for each in session.processes]
    session.run("import sys; a = 5 + process_index; sys.modules['jaxnb.recovery'] = None")
    with pytest.raises(JaxnbError, match=r"could not pack its variables: .*Nothing has changed"):
        session.recover()
    assert [each.pid for each in session.processes] == pids
    assert session.state == "ready"
    session.run("del sys.modules['jaxnb.recovery']")
    session.recover()  # the files do not disturb it
    assert [each.pid for each in session.processes] != pids
    assert_kept(session, "assert a == 5 + process_index")
