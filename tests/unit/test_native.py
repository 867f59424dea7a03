"""Which library a thread waits in, from outside of it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timing


LOOK = """
import ctypes, os, sys, threading, time
from jaxnb.engine import native
from jaxnb.engine.sleeping import sleeps_in
gate = threading.Lock(); gate.acquire()
c = ctypes.CDLL(None)
semaphore = (ctypes.c_char * 64)(); c.sem_init(semaphore, 0, 0)
def look():
    while sleeps_in() != "futex": time.sleep(0.01)
    time.sleep(0.05)
    print(native.library_waited_in(), flush=True)
    gate.release(); c.sem_post(semaphore)
threading.Thread(target=look).start()
"""


@pytest.mark.parametrize(
    ("wait", "expected"),
    [("gate.acquire()", ["python"]), ("c.sem_wait(semaphore)", ["ffi", "_ctypes"])],
)
def test_whose_code_waits_is_told_apart(wait: str, expected: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LOOK + wait], check=False, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    found = os.path.basename(ran.stdout.strip())
    assert any(name in found for name in expected)


OLD = """
import ctypes, os, struct, threading, time
import _ctypes
from jaxnb.engine import native
from jaxnb.engine.sleeping import sleeps_in
gate = threading.Lock(); gate.acquire()
def look():
    while sleeps_in() != "futex": time.sleep(0.01)
    time.sleep(0.05)
    mappings = native._executable_mappings()
    (old,) = (each.start for each in mappings if each.path == _ctypes.__file__)
    pointer, address = native._registers(os.getpid())
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        memory.seek(pointer)
        stack = memory.read(native.STACK_BYTES)
    words = []
    for (word,) in struct.iter_unpack("<Q", stack):
        is_code = any(each.start <= word < each.end for each in mappings)
        words.append(word if is_code else old)
    print(native._caller(mappings, struct.pack(f"<{len(words)}Q", *words), address), flush=True)
    gate.release()
threading.Thread(target=look).start()
gate.acquire()
"""


@pytest.mark.may_be_skipped
@pytest.mark.skipif(platform.machine() != "x86_64", reason="known on x86-64 only")
def test_what_earlier_calls_have_left_on_the_stack_is_not_believed() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", OLD], check=False, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    assert "python" in os.path.basename(ran.stdout.strip())
