"""What a cell forks begins with Python's own handlers, ends where the cell ends, and is heard."""

from __future__ import annotations

from typing import Any

import pytest

from jaxnb.session import Session
from support.fixtures import PATIENT_SECONDS, until

# Each leaves in `found` what became of its children: exit statuses, or what they have computed.
TERMINATED = """
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
child.start(); child.{how}(); child.join(); found = child.exitcode
"""
INTERRUPTED = """
def sleep():
    ready.set()
    while True: time.sleep(0.01)  # Python sees a signal that came just before a sleep at its end
context = multiprocessing.get_context("fork")
ready = context.Event()
child = context.Process(target=sleep); child.start(); ready.wait()
os.kill(child.pid, signal.SIGINT); child.join(); found = child.exitcode
"""
POOL = """
with multiprocessing.get_context("fork").Pool(2) as pool:
    found = pool.map(math.sqrt, [1, 4])
"""
FORKED = """
{before}
child = os.fork()
if child == 0:
    {how}
found = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
AWAITS = "await asyncio.sleep(0)"
FORKED_TO_THE_END = """
child = os.fork()
if child:
    found = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
OWN_HANDLER = """
def child():
    os.kill(os.getpid(), signal.SIGTERM)
before = signal.signal(signal.SIGTERM, lambda *_: os._exit(9))
process = multiprocessing.get_context("fork").Process(target=child)
process.start(); process.join(); found = process.exitcode
signal.signal(signal.SIGTERM, before)
"""
OWN_EXIT_HANDLER = """
child = os.fork()
if child == 0:
    atexit.register(os._exit, 7)
    sys.exit()
found = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
IMPORTS = """
import asyncio, atexit, math, multiprocessing, os, signal, subprocess, sys, time, warnings
warnings.simplefilter("ignore")  # JAX and Python 3.12 warn of every fork beside threads
"""


@pytest.mark.parametrize(
    ("code", "found"),
    [
        pytest.param(TERMINATED.format(how="terminate"), -15, id="terminate"),
        pytest.param(TERMINATED.format(how="kill"), -9, id="kill"),
        pytest.param(INTERRUPTED, 1, id="sigint"),
        pytest.param(POOL, [1.0, 2.0], id="pool-fork"),
        pytest.param(FORKED.format(before="", how="sys.exit(3)"), 3, id="exit"),
        pytest.param(FORKED.format(before="", how="os._exit(3)"), 3, id="_exit"),
        pytest.param(FORKED.format(before=AWAITS, how="sys.exit(3)"), 3, id="await"),
        pytest.param(FORKED_TO_THE_END, 0, id="end-of-cell"),
        pytest.param(OWN_HANDLER, 9, id="own-handler"),
        pytest.param(OWN_EXIT_HANDLER, 7, id="own-exit-handler"),
    ],
)  # fmt: skip
def test_children_end_as_they_do_in_a_program(session: Session, code: str, found: Any) -> None:
    result = session.run(f"{IMPORTS}{code}", timeout=PATIENT_SECONDS)
    assert [each.value for each in session.run("found").per_process.values()] == [found] * 4
    assert "Fatal Python error" not in result.stderr
    # The parents have kept their own handlers, and their devices.
    assert session.run("jax.jit(jnp.sum)(jnp.ones(3)), jax.device_count()").value == (3.0, 8)
    assert session.state == "ready"


def test_what_a_child_prints_or_raises_is_shown(session: Session) -> None:
    code = FORKED.format(before="", how="print('from the child'); 1 / 0")
    result = session.run(f"{IMPORTS}{code}", ranks=[1], timeout=PATIENT_SECONDS)
    written = [result.stderr]

    def has_come() -> bool:
        """C code's output may come after the cell has ended, with that of the next one."""
        later = session.run("found", ranks=[1])
        assert later.value == 1
        written.append(later.stderr)
        return all(word in "".join(written) for word in ("from the child", "ZeroDivisionError"))

    until(has_come, "what the child has written")
