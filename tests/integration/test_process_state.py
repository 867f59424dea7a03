"""Variables of every kind come back in a new process, or are named."""

from __future__ import annotations

from collections.abc import Callable

from integration.carried_variables import ASK, CELL, CHECKS, LOST
from jaxnb.session import Session

REDEFINED = """
from traitlets import HasTraits, Int
class Fields(HasTraits):
    {}
earlier = [*globals().get("earlier", ()), Fields(n=5)]
"""
"""Traits that a class statement does not name are gone when its parts are put together again."""


def test_all_come_back_or_are_named(make_session: Callable[..., Session]) -> None:
    session = make_session(1, devices_per_process=4)
    for traits in ("n = Int(3)", "n = Int(3)", "n, m = Int(3), Int(4)"):
        session.run(REDEFINED.format(traits))
    session.run(CELL)
    found = {lost.path: (lost.type, lost.reason) for lost in session.recover().lost}
    assert {path: kind for path, (kind, _) in found.items()} == {
        path: kind for path, (kind, _) in LOST.items()
    }
    for path, (_, reason) in LOST.items():
        assert found[path][1].startswith(reason)
    assert session.run(ASK).value == dict.fromkeys(CHECKS, True)
    assert session.run("[(f.n, sorted(f.trait_names())) for f in earlier]").value == [
        (5, ["n"]), (5, ["n"]), (5, ["m", "n"])
    ]  # fmt: skip
    assert session.run("(Fields().m, type(earlier[2]) is Fields)").value == (4, True)
