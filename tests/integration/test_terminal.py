"""jaxnb in a terminal: a real IPython behind a pseudo-terminal."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator

import pexpect
import pytest

from integration.test_magics import EXACT_LABELS
from support.fixtures import own_frames

PROMPT = r"In \[\d+\]: "
MORE = r"   \.\.\.: "
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Terminal:
    """IPython behind a pty, driven as a person types."""

    def __init__(self, folder: str) -> None:
        self.child = pexpect.spawn(
            sys.executable,
            ["-m", "IPython", "--simple-prompt", "--no-banner", "--no-confirm-exit",
             "--colors=NoColor", "--HistoryManager.enabled=False"],
            env={**os.environ, "TERM": "xterm", "IPYTHONDIR": folder},
            encoding="utf-8",
            dimensions=(50, 160),
            timeout=90,
            echo=False,
        )  # fmt: skip
        self.child.expect(PROMPT)

    def type(self, source: str) -> str:
        """Types a cell and returns what the terminal shows until the next prompt."""
        lines = source.splitlines()
        if len(lines) > 1:  # IPython takes a cell magic once two lines are empty
            lines += ["", ""]
        for line in lines[:-1]:
            self.child.sendline(line)
            self.child.expect(MORE)
        self.child.sendline(lines[-1])
        self.child.expect(PROMPT)
        return COLOURS.sub("", str(self.child.before)).replace("\r\n", "\n")

    def close(self) -> None:
        """Leaves by Control-D."""
        if self.child.isalive():
            self.child.sendeof()
            self.child.expect(pexpect.EOF)
        self.child.close()


@pytest.fixture
def terminal(tmp_path) -> Iterator[Terminal]:  # type: ignore[no-untyped-def]
    terminal = Terminal(str(tmp_path))
    yield terminal
    terminal.close()


def test_a_session_in_a_terminal(terminal: Terminal) -> None:
    assert terminal.type("%load_ext jaxnb").strip() == ""
    terminal.type(EXACT_LABELS)
    assert "UsageError: There is no group of processes." in terminal.type("%spmd 1")

    started = terminal.type("%spmd_start -n 2 --devices-per-process 2 --platform cpu")
    assert "2 processes" in started
    assert "4 devices" in started
    assert "<" not in started.replace("<jaxnb", "")  # text, not markup

    merged = terminal.type("%%spmd\nprint('hello')\nprint('I am', process_index)")
    lines = merged.splitlines()
    assert lines[0] == "[0-1] hello"
    assert {"[0] I am 0", "[1] I am 1"} <= set(lines)

    assert "42" in terminal.type("%spmd 6 * 7")

    card = terminal.type(
        "%%spmd\nmesh = jax.make_mesh((4,), ('data',))\n"
        "jax.make_array_from_callback((8,), NamedSharding(mesh, P('data')), "
        "lambda i: np.arange(8.)[i])"
    )
    assert re.search(r"float(32|64)\[8\]", card)
    assert "P('data'" in card
    assert "<div" not in card

    failed = terminal.type("%%spmd\nif process_index == 1:\n    raise ValueError('boom')")
    assert "raise ValueError('boom')" in failed
    assert "CellError: process 1 raised ValueError (cell [" in failed
    assert failed.count("line 3") == 1
    assert own_frames(failed) == []
    terminal.child.sendline("%debug")
    for command in ("p process_index", "quit"):
        terminal.child.expect_exact("[1] ipdb> ")
        terminal.child.sendline(command)
    terminal.child.expect(PROMPT)

    terminal.child.sendline("%spmd input('name? ')")
    terminal.child.expect(r"\[[01-]+\] name\? ")  # who has come to it by then
    assert "'bob'" in terminal.type("bob")

    bar = terminal.type(
        "%%spmd\nfrom tqdm import tqdm\n"
        "for _ in tqdm(range(3), mininterval=0, bar_format='{n_fmt} of {total_fmt}'): pass"
    )
    # Rewritten in place by carriage returns; the last state stays, with its label.
    assert bar.replace("\r", "\n").splitlines().count("[0-1] 3 of 3") >= 1

    assert "ready" in terminal.type("%spmd_status")
    assert "4 devices of 2 processes" in terminal.type("%spmd_stats")
    assert "this is one look" in terminal.type("%spmd_stats --live")
    assert "stopped" in terminal.type("%spmd_stop").lower()


@pytest.mark.thorough
def test_leaving_the_terminal_ends_the_group(terminal: Terminal) -> None:
    # What must not be left behind is looked for by the fixture of all tests.
    terminal.type("%load_ext jaxnb")
    assert "1 process" in terminal.type("%spmd_start -n 1 --platform cpu")
    terminal.close()
    assert terminal.child.exitstatus == 0
