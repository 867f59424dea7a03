"""What processes ask, answered as a notebook's front end does: `input()`, and debuggers."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator

import psutil
import pytest

from jaxnb.debugging.asking import TWIN_SECONDS
from support.fixtures import PATIENT_SECONDS, still_running
from support.kernels import AskedKernel
from support.shown import who_wrote

TOTAL = """%%spmd
import jax.experimental.multihost_utils as mh
print("total", int(mh.process_allgather(np.array([process_index + 1])).sum()))"""


@pytest.fixture(scope="module")
def kernel() -> Iterator[AskedKernel]:
    """One kernel with a group of two."""
    kernel = AskedKernel()
    try:
        ran = kernel.run("%load_ext jaxnb\n%spmd_start -n 2 --platform cpu")
        assert not ran.error, ran
        yield kernel
    finally:
        kernel.close()


def assert_usable(kernel: AskedKernel) -> None:
    assert who_wrote(kernel.run(TOTAL).text.splitlines(), "total 3") == [0, 1]


@pytest.fixture
def patient(kernel: AskedKernel) -> Iterator[AskedKernel]:
    """The kernel; questions wait for those of the other process, however busy the machine is."""
    code = "import jaxnb.debugging.asking as them\nthem.TWIN_SECONDS = "
    kernel.run(f"{code}{PATIENT_SECONDS}")
    yield kernel
    kernel.run(f"{code}{TWIN_SECONDS}")


def test_an_answer_goes_to_all_processes_that_ask_the_same(patient: AskedKernel) -> None:
    ran = patient.run(
        "%%spmd\nprint('first')\nx = input('name? '), input('name? ')\nprint(x)", "a", "b"
    )
    assert ran.prompts == ["[0-1] name? ", "[0-1] name? "]
    assert who_wrote(ran.text.splitlines(), "first") == [0, 1]
    assert who_wrote(ran.text.splitlines(), "('a', 'b')") == [0, 1]


def test_one_process_may_ask_alone_and_hide_what_is_typed(kernel: AskedKernel) -> None:
    code = "%%spmd\nimport getpass\nif process_index == 1:\n    print(getpass.getpass())"
    ran = kernel.run(code, "secret")
    assert ran.prompts == ["[1] Password: (hidden)"]
    assert ran.text == "[1] secret\n"


def test_the_end_of_input_is_an_eoferror(kernel: AskedKernel) -> None:
    assert "EOFError on processes 0-1" in kernel.run("%%spmd\ninput()", "\x04").error


def test_a_front_end_that_cannot_be_asked_is_a_sentence(kernel: AskedKernel) -> None:
    error = " ".join(kernel.run("%%spmd\n\ninput('name? ')", asks=False).error.split())
    assert "`input()` at line 3 cannot ask: this front end (nbclient, papermill" in error
    error = " ".join(kernel.run("%spmd --async --out cell input()\ncell.result()").error.split())
    assert "`input()` at line 1 cannot ask: its cell runs in the background" in error


def test_interrupt_ends_what_nobody_answers(kernel: AskedKernel) -> None:
    ran = kernel.run("%%spmd\ninput('name? ')", kernel.manager.interrupt_kernel)
    assert "KeyboardInterrupt on processes 0-1" in ran.error
    assert "queue.py" not in ran.error
    assert_usable(kernel)


def test_a_breakpoint_stops_one_process_and_others_wait_for_it(kernel: AskedKernel) -> None:
    code = f"%%spmd\nn = process_index * 10\nif process_index == 1:\n    breakpoint()\n{TOTAL[7:]}"
    ran = kernel.run(code, "p n + 1", "where", "!n = 12", "continue")
    assert set(ran.prompts) == {"[1] ipdb> "}
    assert "[1] 11\n" in ran.text
    assert who_wrote(ran.text.splitlines(), "total 3") == [0, 1]
    assert "interactiveshell" not in ran.text
    assert kernel.run("%spmd print(n)").text == "[0] 0\n[1] 12\n"


def test_breakpoints_of_several_processes_come_one_after_the_other(kernel: AskedKernel) -> None:
    code = "%%spmd\nimport pdb\npdb.set_trace()\nprint('over')"
    ran = kernel.run(code, "l", "p process_index", "c", "l", "p process_index", "c")
    zero, one = ["[0] ipdb> "] * 3, ["[1] ipdb> "] * 3
    assert ran.prompts in (zero + one, one + zero)
    assert "[0] over\n" in ran.text
    assert "[1] over\n" in ran.text
    # As it was typed: the listing of one is not merged with that of the other.
    lines = re.sub(r"\x1b\[[0-9;]*m", "", ran.text).splitlines()
    assert {"[0]       1 # %%spmd", "[1]       1 # %%spmd"} <= set(lines)


def test_what_is_typed_at_the_prompt_is_not_of_the_line_where_it_stopped(
    kernel: AskedKernel,
) -> None:
    typed = "p mh.process_allgather(np.ones(3)).sum()"
    ran = kernel.run(f"%%spmd\nif process_index == 1:\n    breakpoint()\n{TOTAL[7:]}", typed, "c")
    assert "at line 3 (`ipdb> (typed at the prompt)`)" in ran.text


def test_step_goes_past_jax_into_the_users_function(kernel: AskedKernel) -> None:
    code = """%%spmd
@jax.jit
def f(x):
    doubled = 2 * x
    return doubled.sum()
if process_index == 1:
    breakpoint()
float(f(jnp.ones(3)))"""
    ran = kernel.run(code, "next", "step", "next", "next", "args", "p doubled.shape", "continue")
    assert "[1] x = JitTracer(float32[3])\n" in ran.text
    assert "[1] (3,)\n" in ran.text


@pytest.mark.parametrize("end", ["quit", "interrupt"])
def test_to_leave_a_debugger_ends_the_cell_everywhere(kernel: AskedKernel, end: str) -> None:
    how = "quit" if end == "quit" else kernel.manager.interrupt_kernel
    ran = kernel.run(f"%%spmd\nif process_index == 1:\n    breakpoint()\n{TOTAL[7:]}", how)
    assert "KeyboardInterrupt on process" in ran.error
    assert "pdb.py" not in ran.error
    assert_usable(kernel)


@pytest.mark.parametrize("end", ["quit", "interrupt"])
def test_who_leaves_the_debugger_of_one_process_is_asked_by_no_other(
    kernel: AskedKernel, end: str
) -> None:
    """A box that nobody waits for any more keeps JupyterLab from running cells."""
    how = "quit" if end == "quit" else kernel.manager.interrupt_kernel
    ran = kernel.run("%%spmd\nfor turn in range(2):\n    breakpoint()\n    z = turn", how)
    assert len(ran.prompts) == 1
    assert "KeyboardInterrupt on processes 0-1" in ran.error


def test_debug_opens_on_the_process_that_is_the_cause(kernel: AskedKernel) -> None:
    code = """%%spmd
def inverse(v):
    return 1 / v
if process_index == 1:
    inverse(0)
jnp.ones(2)
float(jax.jit(jnp.sum)(mh.process_allgather(np.ones(1))))"""
    assert "ZeroDivisionError on process 1" in kernel.run(code).error
    ran = kernel.run("%debug", "p v", "up", "p process_index", "quit")
    assert set(ran.prompts) == {"[1] ipdb> "}
    assert "[1] 0\n" in ran.text
    assert "[1] 1\n" in ran.text
    assert not ran.error
    assert kernel.run("%spmd_debug --ranks 0", "quit").prompts == ["[0] ipdb> "]
    ran = kernel.run("%debug --ranks 0", "interact", "quit")
    assert ran.prompts == ["[0] ipdb> "] * 2
    assert "`interact` is not available here" in ran.text
    error = kernel.run("%debug", asks=False).error
    assert " ".join(error.split()) == (
        "UsageError: This front end (nbclient, papermill, …) takes no input, so no debugger was "
        "opened."
    )
    kernel.run("1 / 0")
    assert kernel.run("%debug", "quit").prompts == ["ipdb> "]


def test_an_error_before_the_code_ran_has_nothing_to_look_at(kernel: AskedKernel) -> None:
    kernel.run("%%spmd\nx = (")
    assert "It came before any code of the cell ran" in kernel.run("%debug").error


def test_time_in_a_debugger_does_not_count_for_the_time_out(kernel: AskedKernel) -> None:
    def wait() -> None:
        threading.Event().wait(1.5)  # longer than the time-out, which is the point
        kernel.client.input("continue")

    assert not kernel.run("%%spmd --timeout 1\nif process_index == 1: breakpoint()", wait).error


def test_a_process_may_die_in_a_debugger(kernel: AskedKernel) -> None:
    pid = int(kernel.run("print(spmd.processes[1].pid)").text)
    ran = kernel.run(
        "%%spmd\nif process_index == 1: breakpoint()", lambda: os.kill(pid, signal.SIGKILL)
    )
    assert "ProcessDiedError: Process 1 of 2" in ran.error
    kernel.run("%spmd_recover")
    assert kernel.run("%spmd_debug").error.startswith("UsageError: No cell has failed on these")
    assert_usable(kernel)


def test_nothing_is_left_of_a_kernel_that_ends_in_a_debugger(kernel: AskedKernel) -> None:
    processes = psutil.Process(kernel.manager.provisioner.pid).children(recursive=True)
    kernel.client.execute("%spmd breakpoint()", allow_stdin=True)
    kernel.client.get_stdin_msg(timeout=PATIENT_SECONDS)
    kernel.close(now=True)
    assert len(processes) > 2
    assert still_running(processes) == []
