"""Runs JAX's own tests for several processes in groups of jaxnb, with checks on and off.

    python scripts/jax_suite.py FOLDER [NAME…]

FOLDER is ``tests/multiprocess`` of JAX's sources, of the version that is installed; NAME a file in
it without ``.py``. Each file runs in a fresh group of 4 processes with 2 devices each, and without
jaxnb, as JAX runs it. Prints which tests failed where. Exits with status 1 if one failed in a group
that passes without jaxnb: of JAX 0.10.2 only ``wait_barrier_test`` does. It has a barrier run into
its time-out, which checks tell at once; and groups that outlive a process, as jaxnb's do, have JAX
raise nothing where a process comes to a barrier of others.
"""

from __future__ import annotations

import argparse
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jaxnb
from jaxnb.cells.result import CellResult

PROCESSES, DEVICES = 4, 2
SECONDS = 240.0
"""One file takes 5 to 20 s."""

CELL = """
import io, sys, unittest
from absl import flags
import jax._src.test_util as jtu, jax._src.test_multiprocess
if not flags.FLAGS.is_parsed():
    flags.FLAGS(["test", "--num_processes={processes}",
                 f"--multiprocess_test_worker_id={{process_index}}"])
if {folder!r} not in sys.path:
    sys.path.insert(0, {folder!r})
tests = jtu.JaxTestLoader().loadTestsFromName({name!r})
found = unittest.TextTestRunner(io.StringIO(), verbosity=2).run(tests)
[(test.id(), text) for test, text in (*found.failures, *found.errors)], found.testsRun
"""
FAILED = re.compile(r"^(?:FAIL|ERROR): (\w+) \(([\w.]+)\)", re.MULTILINE)


def in_a_group(folder: str, name: str, check: Any) -> tuple[dict[str, str], str]:
    """Returns the tests that failed, with the first error, and what is said of the run."""
    with jaxnb.start(PROCESSES, devices_per_process=DEVICES, platform="cpu") as session:
        code = CELL.format(folder=folder, name=name, processes=PROCESSES)
        result: CellResult = session.run(code, check=check, timeout=SECONDS, raise_on_error=False)
        if result.errors:
            return {"the cell": str(result)}, "ended with an error"
        values = [each.value for each in result.per_process.values()]
    failed = {}
    for index, (tests, _) in enumerate(values):
        for test, text in tests:
            short = test.split(".")[-1].split()[0]
            failed.setdefault(short, f"process {index}: {text.strip().splitlines()[-1]}")
    return failed, f"{values[0][1]} run"


def alone(folder: str, name: str) -> tuple[set[str], str]:
    """The same without jaxnb."""
    with tempfile.TemporaryDirectory() as outputs, socket.create_server(("localhost", 0)) as taken:
        port = taken.getsockname()[1]
        taken.close()
        processes = []
        for index in range(PROCESSES):
            command = [sys.executable, f"{folder}/{name}.py", f"--num_processes={PROCESSES}"]
            command += [f"--multiprocess_test_worker_id={index}"]
            command += [f"--multiprocess_test_controller_address=localhost:{port}"]
            command += [f"--jax_num_cpu_devices={DEVICES}"]
            with (Path(outputs) / str(index)).open("w") as file:
                processes.append(subprocess.Popen(command, stdout=file, stderr=file))
        codes = [process.wait(SECONDS) for process in processes]
        texts = [(Path(outputs) / str(index)).read_text() for index in range(PROCESSES)]
    failed = {found[0] for text in texts for found in FAILED.findall(text)}
    if any(codes) and not failed:
        failed = {"the file"}
    ran = re.search(r"Ran (\d+) test", texts[0])
    return failed, f"{ran[1] if ran else 'no'} run"


def main() -> int:
    """Runs the files; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    folder = str(options.folder.resolve())
    names = options.names or sorted(each.stem for each in options.folder.glob("*_test.py"))
    worse = 0
    for name in names:
        plain, said = alone(folder, name)
        print(f"{name}: without jaxnb {said}, failed: {sorted(plain) or 'none'}", flush=True)
        for check in ("strict", "off"):
            failed, said = in_a_group(folder, name, check)
            worse += bool(failed.keys() - plain)
            print(f"    check={check}: {said}, failed: {failed or 'none'}", flush=True)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
