"""Looking at the main thread's calls, and interrupting them."""

from __future__ import annotations

import contextlib
import gc
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import pytest

from jaxnb.lockstep import process_interrupts, process_origins
from jaxnb.profile import process_stats
from jaxnb.profile.process_stats import bytes_in_use
from jaxnb.session import process_endpoint

SECONDS = 6
"""Without holding collections back it crashes, or finds what is no call, mostly sooner."""

# Collections begin at every third object, and let other threads go on.
BUSY = """
import faulthandler, gc, sys, threading, time
from jaxnb.session import process_endpoint
faulthandler.enable()
gc.callbacks.append(lambda *_: time.sleep(0))
gc.set_threshold(3)
sys.setswitchinterval(1e-5)
looks = 0

def look():
    global looks
    while True:
        assert process_endpoint.calls()
        looks += 1
        time.sleep(0)

threading.Thread(target=look, daemon=True).start()
functions = []
for n in range(1, 12):
    names = [f"v{i}" for i in range(n)]
    code = f"def f{n}(depth):\\n"
    code += "".join(f"    {name} = ({i}, depth)\\n" for i, name in enumerate(names))
    code += f"    below = functions[(depth * 7 + {n}) % 11](depth - 1) if depth else 0\\n"
    code += f"    assert [{', '.join(names)}] == [(i, depth) for i in range({n})]\\n"
    exec(code + "    return below + 1")
    functions.append(globals()[f"f{n}"])
stop, rounds = time.monotonic() + float(sys.argv[1]), 0
while time.monotonic() < stop:
    rounds += 1
    depth = rounds % 17
    assert functions[rounds % 11](depth) == depth + 1
print(rounds > 100, looks > 100)
"""


@pytest.mark.timing
def test_looking_harms_nobody() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", BUSY, str(SECONDS)], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True True\n", "")


@pytest.mark.parametrize("threshold", [0, 700])
def test_collections_go_on_afterwards(threshold: int) -> None:
    before = gc.get_threshold()
    try:
        gc.set_threshold(threshold)
        assert process_endpoint.calls()
        assert gc.get_threshold() == (threshold, *before[1:])
    finally:
        gc.set_threshold(*before)


# ---------------------------------------------------------------------- what an interrupt strikes


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


# -------------------------------------------------------- from where in a cell something was called


CELL = "/folder/of/process_0/cell_7.py"


def run(code: str, file: str = CELL, **names: Any) -> dict[str, Any]:
    found: list[tuple[int | None, int, int | None]] = []

    def look() -> None:
        frame = sys._getframe(1)
        found.append((*process_origins.place_in(frame, CELL), process_origins.line_in(frame, CELL)))

    names |= {"look": look, "found": found}
    exec(compile(code, file, "exec"), names)
    return names


def test_the_innermost_line_and_the_place_are_told() -> None:
    code = "def f():\n    look()\nf()\nlook(); look()\n"
    found = run(code)["found"]
    assert [line for line, _, _ in found] == [line for _, _, line in found] == [2, 4, 4]
    assert len({place for _, place, _ in found}) == 3
    assert run(code)["found"] == found  # of other code objects, of the same text
    assert run(code, "/elsewhere/cell_8.py")["found"] == [(None, 0, None)] * 3


def test_calls_are_remembered_of_the_code_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where code was that is gone, other code may lie."""
    monkeypatch.setattr(process_origins, "MAX_CALLS", 8)
    monkeypatch.setattr(process_origins, "_CALLS", {})
    codes = ["\n" * k + "look()" for k in range(20)]
    first = [run(code)["found"] for code in codes]
    assert len(process_origins._CALLS) <= 8
    monkeypatch.setattr(process_origins, "_CALLS", {})
    assert [run(code)["found"] for code in reversed(codes)] == first[::-1]
    assert [found[0][0] for found in first] == list(range(1, 21))


# ---------------------------------------------------------------------- one looks at a time


def others_may_look() -> bool:
    """Whether another thread may look now."""

    def try_it() -> bool:
        if may := process_stats._lock.acquire(blocking=False):
            process_stats._lock.release()
        return may

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(try_it).result()


@pytest.mark.parametrize(
    ("look", "module", "name"),
    [
        (bytes_in_use, jax, "live_arrays"),
        (process_endpoint.calls, sys, "_current_frames"),
    ],
)
def test_one_looks_at_a_time(
    look: Callable[[], object], module: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, found = getattr(module, name), []

    def looked() -> object:
        found.append(others_may_look())
        return real()

    monkeypatch.setattr(module, name, looked)
    look()
    assert found == [False]
    assert others_may_look()
