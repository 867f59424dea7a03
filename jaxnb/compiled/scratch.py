"""A scratch process: many CPU devices, one question, then it is gone."""

from __future__ import annotations

import os
import pickle
import selectors
import subprocess
import tempfile
from contextlib import suppress
from typing import IO

from jaxnb.errors import JaxnbError
from jaxnb.launch.lifeline import command_line
from jaxnb.model.compiled import PlanReply, PlanRequest

_LAST_LINES = 15

LOOK_SECONDS = 0.2
"""How often it is looked whether an interrupt has come, at least."""


def ask_scratch(request: PlanRequest) -> PlanReply:
    """Starts a scratch process, asks it, and ends it.

    It has pipes to this process and no sockets. However long it takes, it can be interrupted;
    it ends with this process too, in whatever way that ends.

    Raises:
        KeyboardInterrupt: It was interrupted; the process is gone.
        JaxnbError: It ended without an answer.
    """
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command_line("jaxnb.compiled.process_scratch", str(os.getpid())),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            # Jupyter interrupts the kernel's whole process group.
            start_new_session=True,
        )
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):  # the end of its answer says so
                process.stdin.write(pickle.dumps(request))
                process.stdin.flush()
            answer = _read(process.stdout.fileno())
        finally:
            process.kill()  # it has answered, or nobody waits for it
            _close(process)
        if not answer:
            raise JaxnbError(
                f"The scratch process for {request.num_devices} devices (pid {process.pid}) "
                f"ended with status {process.returncode} before it answered. The group is "
                f"unchanged. Its last lines:\n{_last_lines(log)}"
            )
    reply: PlanReply = pickle.loads(answer)
    return reply


def _read(descriptor: int) -> bytes:
    """Reads to the end.

    Not in one blocking call: where a signal reaches another thread than the main one it would
    not end that, and Python handles signals between its own instructions only.
    """
    parts: list[bytes] = []
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            if not selector.select(LOOK_SECONDS):
                continue
            part = os.read(descriptor, 1 << 16)
            if not part:
                return b"".join(parts)
            parts.append(part)


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        with suppress(BrokenPipeError):
            assert pipe is not None
            pipe.close()
    process.wait()


def _last_lines(log: IO[bytes]) -> str:
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - 20_000))
    lines = log.read().decode(errors="replace").splitlines()
    return "\n".join(line[:300] for line in lines[-_LAST_LINES:]) or "(nothing)"
