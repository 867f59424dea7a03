"""What an interrupt strikes, and what it leaves alone for a moment."""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import Path

import jax
import pytest

from jaxnb.lockstep import process_interrupts

CONTEXT = """
class set_mesh:
    def __init__(self): state.append(1); come(1)
    def __enter__(self): come(2)
    def __exit__(self, *error): come(3); state.pop()
"""
USES = """
with set_mesh():
    came.append(now)
    while now < 3: spin()
while True: spin()
"""


@pytest.mark.parametrize("now", [1, 2, 3])
def test_an_interrupt_leaves_nothing_set_that_jax_sets_for_a_while(
    now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_interrupts, "is_answering", True)
    state: list[int] = []
    came: list[int] = []

    def come(where: int) -> None:
        if where == now:
            signal.raise_signal(signal.SIGINT)

    names = {"state": state, "come": come, "came": came, "now": now, "spin": lambda: None}
    exec(compile(CONTEXT, f"{Path(jax.__file__).parent}/contexts.py", "exec"), names)
    before = signal.getsignal(signal.SIGINT)
    process_interrupts.allow()
    try:
        with pytest.raises(KeyboardInterrupt):
            exec(compile(USES, "<cell 1>", "exec"), names)
    finally:
        process_interrupts.ignore()
        signal.signal(signal.SIGINT, before)
    assert came == [now]
    assert state == []


def test_what_is_entered_next_is_seen() -> None:
    seen: list[bool] = []

    def look() -> contextlib.nullcontext[None]:
        seen.append(process_interrupts.is_in_context_manager_of_jax(sys._getframe(1)))
        return contextlib.nullcontext()

    with look():
        look()
    assert seen == [True, False]
