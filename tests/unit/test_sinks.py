"""What a cell shows in a notebook while it runs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from jaxnb.cells.merge_output import MergedLine
from jaxnb.magics import sinks


def test_lines_that_came_too_soon_after_others_are_shown_a_little_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, shown = [10.0], list[str]()

    def publish(data: dict[str, str], **_: object) -> None:
        shown.append(data["text/plain"])

    shell = SimpleNamespace(display_pub=SimpleNamespace(publish=publish))
    monkeypatch.setattr(sinks, "get_ipython", lambda: shell)
    monkeypatch.setattr(sinks, "time", SimpleNamespace(monotonic=lambda: now[0]))
    sink = sinks.NotebookSink()
    for count in (1, 2, 4):
        sink.live([MergedLine("stdout", frozenset(range(count)), "waiting")])
    sink.tick()
    assert shown == ["[0] waiting"]
    now[0] += 2 * sinks.LIVE_SECONDS
    sink.tick()
    sink.tick()
    assert shown == ["[0] waiting", "[0-3] waiting"]
