"""Which library a thread waits in, from outside of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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
