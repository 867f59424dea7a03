"""Ways in which a script ends under ``jaxnb run``: what is shown, the exit status, what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

import jaxnb
from support.fixtures import PATIENT_SECONDS, until

ARRAYS = """\
import jax, numpy as np
mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
sharding = jax.NamedSharding(mesh, jax.P("d"))
x = jax.make_array_from_callback((jax.device_count(),), sharding, lambda _: np.ones(1, np.float32))
total = jax.jit(lambda x: x.sum(), out_shardings=jax.NamedSharding(mesh, jax.P()))
me = jax.process_index()
"""
"""What `arrays.py`, beside each script, holds."""


@dataclass(frozen=True)
class Row:
    """A script, and how it ends on two processes.

    Attributes:
        source: The script; it may begin with ``from arrays import *``.
        status: The exit status of the launcher.
        out: Its standard output.
        err: What its standard error has in it, each part.
        options: More options.
        stdin: What is piped in.
    """

    source: str
    status: int = 0
    out: str = ""
    err: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    stdin: str = ""


ROWS = {
    "returns": Row(
        "import builtins, os, sys, IPython\n"
        "is_notebook = IPython.get_ipython() or hasattr(builtins, '__IPYTHON__') or "
        "hasattr(sys, 'ps1') or 'CLICOLOR_FORCE' in os.environ\n"
        "print(__name__, sys.argv, os.path.relpath(__file__), sys.path[0] == os.getcwd(), "
        "is_notebook)",
        out="[0] __main__ ['script.py', '0', '-n'] script.py True False\n"
        "[1] __main__ ['script.py', '1', '-n'] script.py True False\n",
        options=("{process_index}", "-n"),
    ),
    "raises on one": Row(
        "from arrays import *\nif me == 1:\n    raise ValueError('bad')\ntotal(x)",
        1,
        err=("ValueError on process 1\n", 'script.py", line 3, in <module>',
             "Process 0 only waited for it at line 4."),
    ),
    "sys.exit(3) on one": Row(
        "from arrays import *\nimport sys\nif me == 1:\n    sys.exit(3)\nprint('on')",
        3,
        "[0] on\n",
        ("process 1 ended with exit status 3 (script.py, line 4)",),
    ),
    "os._exit(5) on one": Row(
        "from arrays import *\nimport os\nif me == 1:\n    os._exit(5)\ntotal(x)",
        5,
        err=("Process 1 of 2", "ended with exit status 5 while it ran script.py"),
    ),
    "a crash": Row(
        "import jax, os\nif jax.process_index() == 1:\n    os.kill(os.getpid(), 11)\n"
        "import time; time.sleep(1000)",
        139,
        err=("was killed by SIGSEGV", "Fatal Python error", 'script.py", line 3 in <module>\n'),
    ),
    "a thread raises": Row(
        "import threading\nthreading.Thread(target=lambda: 1 / 0).start()",
        err=("[0-1] ZeroDivisionError: division by zero", 'script.py", line 2, in <lambda>'),
    ),
    "computes alone": Row(
        "import jax\nprint(jax.jit(lambda x: x + 1)(1))",
        out="[0-1] 2\n",
        err=("no computation went over several processes: each of the 2 has computed all of "
             "script.py by itself",),
    ),
    "other threads": Row(
        "import concurrent.futures, threading, time\n"
        "def late(): time.sleep(0.2); print('late')\n"
        "threading.Thread(target=late).start()\n"
        "concurrent.futures.ThreadPoolExecutor().submit(late)\nprint('end')",
        out="[0-1] end\n[0-1] late\n[0-1] late\n",
    ),
    "exit handlers": Row(
        "import atexit\n"
        "atexit.register(print, 'first'); atexit.register(print, 'second')\n"
        "atexit.register(lambda: 1 / 0); atexit.register(exit); atexit.unregister(exit)\n"
        "print('end'); raise KeyError('k')",
        1,
        "[0-1] end\n[0-1] second\n[0-1] first\n",
        ("[0-1] Exception ignored in an exit handler:", "KeyError on processes 0-1"),
    ),
    "an uneven loop": Row(
        "from arrays import *\nfor step in range(9 - 2 * me):\n    total(x)\nprint('end')",
        1,
        "[1] end\n",
        ("DivergenceError: process 1 had finished", "process 0: was to dispatch"),
    ),
    "a hang inside a program": Row(
        "from arrays import *\n"
        "from jax.lax import axis_index, psum, while_loop\n"
        "def f(x): return while_loop("
        "lambda v: (v[0] > 0) & (axis_index('d') == 0), lambda v: psum(v, 'd'), x)\n"
        "d = jax.P('d')\n"
        "f = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=d, out_specs=d, check_vma=False))\n"
        "f(x).block_until_ready()",
        124,
        err=("Process 0 did not answer", "line 6: `f(x)", "script.py ran longer than 3 s"),
        options=("--timeout", "3"),
    ),
    "a time-out": Row(
        "import time\ntime.sleep(1000)",
        124,
        err=("KeyboardInterrupt on processes 0-1", "script.py ran longer than 1 s"),
        options=("--timeout", "1"),
    ),
    "a syntax error": Row("x = (\nprint(1)", 1, err=('script.py", line 1', "SyntaxError")),
    "standard input": Row(
        "from arrays import *\nprint(input())",
        1,
        "[0] hello\n",
        ("OSError on process 1", "Only process 0 of a script has a standard input"),
        stdin="hello\n",
    ),
    "bytes, asyncio, multiprocessing": Row(
        "import asyncio, multiprocessing, sys\n"
        "def twice(x): return 2 * x\n"
        "async def main(): await asyncio.sleep(0.01); print('slept')\n"
        "if __name__ == '__main__':\n"
        "    sys.stdout.buffer.write(b'bytes\\n'); asyncio.run(main())\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as p: print(p.map(twice, [1]))",
        out="[0-1] bytes\n[0-1] slept\n[0-1] [2]\n",
    ),
}  # fmt: skip

SCREEN_LINES = 24

IN_THE_GATE = ("returns", "raises on one", "a crash", "an uneven loop", "a time-out")


def launch(folder: Path, source: str, *options: str, **settings: object) -> subprocess.Popen[str]:
    """Starts ``jaxnb run script.py`` in a folder, on two CPU processes."""
    (folder / "arrays.py").write_text(ARRAYS)
    (folder / "script.py").write_text(source)
    given: dict[str, object] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | settings
    return subprocess.Popen(
        [sys.executable, "-m", "jaxnb", "run", "script.py", "-n", "2", "--platform", "cpu",
         *options],
        cwd=folder,
        text=True,
        **given,  # type: ignore[call-overload]
    )  # fmt: skip


def by_process(out: str) -> dict[str, list[str]]:
    """Returns the lines of each process: equal ones come apart if one process is much slower."""
    found: dict[str, list[str]] = {"0": [], "1": []}
    for line in out.splitlines(keepends=True):
        label, _, text = line.removeprefix("[").partition("] ")
        for each in label.split("-"):
            found[each].append(text)
    return found


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in IN_THE_GATE else [pytest.mark.thorough])
        for name in ROWS
    ],
)
def test_each_end_is_told(name: str, tmp_path: Path) -> None:
    row = ROWS[name]
    process = launch(tmp_path, row.source, *row.options, stdin=subprocess.PIPE)
    out, err = process.communicate(row.stdin, timeout=PATIENT_SECONDS)
    assert by_process(out) == by_process(row.out.replace("{folder}", str(tmp_path))), err
    assert [part for part in row.err if part not in err] == [], err
    assert process.returncode == row.status
    assert "cell " not in err
    assert "`%spmd" not in err
    assert err == "" or row.err
    assert "\x1b" not in out + err
    assert len(err.splitlines()) <= SCREEN_LINES
    assert f"{Path(jaxnb.__file__).parent}/" not in err


@pytest.mark.parametrize("target", ["missing.py", "folder", "-m"])
def test_what_cannot_be_run_starts_nothing(target: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    targets = ["-m", "no.such"] if target == "-m" else [target]
    done = subprocess.run(
        [sys.executable, "-m", "jaxnb", "run", *targets],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENT_SECONDS,
        check=False,
    )
    assert done.returncode == 2
    assert targets[-1] in done.stderr
    assert done.stdout == ""


SLEEPS = "print('ready', flush=True)\nimport time\ntime.sleep(1000)"


@pytest.mark.parametrize(
    ("number", "times", "status"),
    [
        (signal.SIGTERM, 1, 143),
        pytest.param(signal.SIGINT, 1, 130, marks=pytest.mark.thorough),
        pytest.param(signal.SIGINT, 2, 130, marks=pytest.mark.thorough),
        pytest.param(signal.SIGKILL, 1, -9, marks=pytest.mark.thorough),
    ],
)
def test_a_signal_to_the_launcher_ends_all(
    number: int, times: int, status: int, tmp_path: Path
) -> None:
    caught = "while True:\n    try: time.sleep(1000)\n    except KeyboardInterrupt: print('caught')"
    source = SLEEPS.replace("time.sleep(1000)", caught) if times > 1 else SLEEPS
    with launch(tmp_path, source) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "[0-1] ready\n"
        process.send_signal(number)
        if times > 1:
            assert process.stdout.readline() == "[0-1] caught\n"
            process.send_signal(number)
        assert process.wait(PATIENT_SECONDS) == status


@pytest.mark.thorough
def test_an_interrupt_while_the_processes_start_is_told(tmp_path: Path) -> None:
    with launch(tmp_path, "print('never')") as process:
        until(psutil.Process(process.pid).children)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENT_SECONDS)
    assert (out, err) == ("", "jaxnb: interrupted while the processes were starting\n")
    # Python ends itself by SIGINT if that struck in code that C runs: 130 to a shell, as well.
    assert process.returncode in (130, -signal.SIGINT)


@pytest.mark.thorough
def test_a_reader_that_reads_nothing_does_not_keep_it_from_ending(tmp_path: Path) -> None:
    source = "for i in range(10 ** 5): print(i)\nprint('written', file=open('written', 'w'))"
    with launch(tmp_path, source) as process:
        until((tmp_path / "written").exists)
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENT_SECONDS)
        assert process.returncode == 143


@pytest.mark.thorough
def test_a_closed_pipe_ends_all_quietly(tmp_path: Path) -> None:
    with launch(tmp_path, "for i in range(10 ** 9): print(i)") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "[0-1] 0\n"
        process.stdout.close()
        assert process.wait(PATIENT_SECONDS) == 128 + signal.SIGPIPE
        assert process.stderr.read() == ""


@pytest.mark.thorough
def test_a_full_disk_ends_all(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full, launch(tmp_path, "print(1)", stdout=full) as process:
        assert process.stderr is not None
        assert "could not be written: No space left on device" in process.stderr.read()
        assert process.wait(PATIENT_SECONDS) == 1


@pytest.mark.thorough
def test_reports_are_written(tmp_path: Path) -> None:
    files = ("--json", "run.json", "--timeline", "run.html")
    process = launch(tmp_path, "from arrays import *\ntotal(x)", *files)
    process.communicate(timeout=PATIENT_SECONDS)
    found = json.loads((tmp_path / "run.json").read_text())
    assert found["status"] == 0
    assert [each["error"] for each in found["processes"]] == [None, None]
    assert "script.py" in (tmp_path / "run.html").read_text()
    assert os.path.getsize(tmp_path / "run.html") > 1000
