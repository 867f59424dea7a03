"""Looking at the main thread's calls from another thread, while it makes and ends them."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

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
