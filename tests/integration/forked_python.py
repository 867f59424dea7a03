"""Runs pieces of code, each in a process of its own that has imported JAX already.

To import it takes longer than what most of them do. Nothing has used a backend before the fork.
Called with code to prepare with; reads one JSON text per line of standard input, the code and where
its output goes, and answers each with its exit status.
"""

import atexit
import json
import os
import signal
import sys
import traceback

LIMIT_SECONDS = 120
"""Code that has not ended by then never will; the child is ended, and its status says so."""


def run(code: str, output: str) -> int:
    """Runs code in a child, whose output goes to two files; returns the exit status."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    signal.alarm(LIMIT_SECONDS)
    try:
        for stream, name in ((1, output), (2, f"{output}.errors")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT, 0o600), stream)
        # As in an interpreter of its own: what is defined is found by its module's name.
        space = vars(sys.modules["__main__"])
        exec(PREPARED, space)
        exec(compile(code, "<string>", "exec"), space)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(status)


PREPARED = compile(sys.argv[1], "<prepared>", "exec")

import jax.numpy  # noqa: E402, F401

for line in sys.stdin:
    print(run(*json.loads(line)), flush=True)
