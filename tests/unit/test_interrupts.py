"""Where code is that has been interrupted: on its way out, or in a loop again."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import jax
import pytest

from jaxnb.engine import interrupts
from jaxnb.engine.interrupts import Place, SwallowedInterrupt, loops_in

CELL, TRAIN, STEP = (compile("", name, "exec") for name in ("<cell 1>", "train", "step"))

Call = tuple[int, int, int]


def at(*calls: Call, codes: tuple = (CELL, TRAIN, STEP)) -> Place:  # type: ignore[type-arg]
    pairs = zip(calls, codes, strict=False)
    return tuple((frame, code, line, where) for (frame, line, where), code in pairs)


STRUCK = at((1, 2, 10), (2, 5, 50), (3, 8, 6))


@pytest.mark.parametrize(
    ("now", "loop"),
    [
        (at((1, 2, 10), (2, 5, 50), (3, 8, 6)), 2),  # a loop in the innermost call
        (at((1, 2, 10), (2, 5, 50), (3, 8, 2)), 2),
        (at((1, 2, 10), (2, 5, 50), (4, 9, 90)), 1),  # the same call made again
        (at((1, 2, 10), (2, 5, 50)), 1),
        (at((1, 2, 10), (2, 4, 30), (9, 1, 1)), 1),  # jumped back
        (at((1, 2, 10), (7, 9, 80), (8, 1, 9)), 0),
        (at((1, 1, 4)), 0),
    ],
)
def test_who_is_where_it_was_struck_or_before_that_loops(now: Place, loop: int) -> None:
    assert loops_in(STRUCK, now) == loop


@pytest.mark.parametrize(
    "now",
    [
        at((1, 2, 10), (2, 5, 50), (3, 8, 8)),  # the innermost call handles it, or went on
        at((1, 2, 10), (2, 6, 60), (9, 1, 1)),
        at((1, 3, 12), (9, 1, 1)),
        at((1, 3, 12)),
        at((1, 1, 12)),  # a call over several lines
        at((1, 3, 4)),  # after a handler, which stands at the end
        at((9, 1, 1), (2, 5, 50), (3, 8, 6)),  # another cell, or the next statement of this one
        at((1, 1, 4), codes=(STEP,)),
        (),
    ],
)
def test_who_went_on_after_that_does_not(now: Place) -> None:
    assert loops_in(STRUCK, now) is None


def test_what_was_struck_outside_a_cell_does_not() -> None:
    assert loops_in((), STRUCK) is None


# ---------------------------------------------------------------------- real code


def struck_in(code: str) -> list[int]:
    """Runs a cell that calls ``strike()`` where SIGINT would strike, and ``look()``.

    Returns:
        What was seen at each look; then -2 if the cell has ended by KeyboardInterrupt, and -1 if by
        SwallowedInterrupt.
    """
    seen: list[int] = []

    def strike() -> NoReturn:
        raise interrupts.strike(sys._getframe(1))

    def look() -> None:
        seen.append(interrupts.swallowed())

    def run() -> Iterator[None]:  # as IPython does, in what has exceptions of its own
        try:
            exec(compile(code, "<cell 1>", "exec"), {"strike": strike, "look": look, "n": 0})
        except interrupts.INTERRUPTS as error:
            seen.append(-1 if isinstance(error, SwallowedInterrupt) else -2)
        yield

    interrupts._last = None
    tracing = sys.gettrace()
    try:
        next(run())
    finally:
        sys.settrace(tracing)
        interrupts._last = None
    return seen


LOOPS = {
    "KeyboardInterrupt": """
def step():
    look()
    strike()
while True:
    try: step()
    except KeyboardInterrupt: pass
""",
    "bare": """
def step():
    look()
    strike()
while True:
    try:
        step()
    except:
        pass
""",
    "caught in a call": """
def step():
    try:
        look()
        strike()
    except:
        return
while True:
    step()
""",
    "suppressed": """
import contextlib
while True:
    with contextlib.suppress(BaseException):
        look()
        strike()
""",
    "finally": """
while True:
    try:
        look()
        strike()
    finally:
        continue
""",
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_that_swallows_interrupts_ends(name: str) -> None:
    seen = struck_in(LOOPS[name])
    assert seen == ([0, 1, -1] if name == "KeyboardInterrupt" else [0, 1, 2, -1])


def test_loops_within_each_other_that_swallow_all_are_known() -> None:
    seen = struck_in("""
while n < 9:
    try:
        while n < 9:
            n += 1
            try:
                look()
                strike()
            except:
                pass
    except:
        pass
""")
    assert seen[:4] == [0, 1, 2, 3]
    assert set(seen[4:]) == {3}


HEALTHY = {
    "went on": """
def step(): strike()
try: step()
except KeyboardInterrupt: look()
look()
for _ in range(3):
    look()
""",
    "finally": """
def step():
    try: strike()
    finally:
        for _ in range(3): look()
step()
""",
    "the same function again": """
def f(strikes):
    if strikes: strike()
    look()
try: f(True)
except KeyboardInterrupt: pass
f(False)
f(False)
""",
    "struck in a handler": """
def slow(): strike()
try:
    for b in range(3):
        try: 1 / 0
        except ZeroDivisionError: slow()
except KeyboardInterrupt:
    look()
result = look()
""",
    "a call over several lines": """
def first():
    try: strike()
    except KeyboardInterrupt: look()
def second(*_): look()
second(
    first(),
    second(),
)
""",
    "a context": """
import contextlib
@contextlib.contextmanager
def saved():
    try: yield
    finally:
        look()
        look()
with saved():
    strike()
""",
}


@pytest.mark.parametrize("name", HEALTHY)
def test_code_that_handles_an_interrupt_is_left_alone(name: str) -> None:
    seen = struck_in(HEALTHY[name])
    assert len(seen) >= 2
    assert set(seen) <= {0, -2}


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
def test_an_interrupt_leaves_nothing_set_that_jax_sets_for_a_while(now: int) -> None:
    state: list[int] = []
    came: list[int] = []

    def come(where: int) -> None:
        if where == now:
            signal.raise_signal(signal.SIGINT)

    names = {"state": state, "come": come, "came": came, "now": now, "spin": lambda: None}
    exec(compile(CONTEXT, f"{Path(jax.__file__).parent}/contexts.py", "exec"), names)
    before = signal.getsignal(signal.SIGINT)
    interrupts.allow()
    try:
        with pytest.raises(KeyboardInterrupt):
            exec(compile(USES, "<cell 1>", "exec"), names)
    finally:
        interrupts.ignore()
        signal.signal(signal.SIGINT, before)
    assert came == [now]
    assert state == []


def test_what_is_entered_next_is_seen() -> None:
    seen: list[bool] = []

    def look() -> contextlib.nullcontext[None]:
        seen.append(interrupts.is_in_context_manager_of_jax(sys._getframe(1)))
        return contextlib.nullcontext()

    with look():
        look()
    assert seen == [True, False]
