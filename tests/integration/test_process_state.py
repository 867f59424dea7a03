"""Variables of every kind come back in a new process, or are named."""

from __future__ import annotations

from collections.abc import Callable

from integration.carried_variables import ASK, CELL, CHECKS, LOST
from jaxnb.session import Session


def test_all_come_back_or_are_named(make_session: Callable[..., Session]) -> None:
    session = make_session(1, devices_per_process=4)
    session.run(CELL)
    found = {lost.path: (lost.type, lost.reason) for lost in session.recover().lost}
    assert {path: kind for path, (kind, _) in found.items()} == {
        path: kind for path, (kind, _) in LOST.items()
    }
    for path, (_, reason) in LOST.items():
        assert found[path][1].startswith(reason)
    assert session.run(ASK).value == dict.fromkeys(CHECKS, True)
