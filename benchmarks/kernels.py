"""A notebook without the browser: a real kernel, driven over its channels and timed."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from benchmarks.processes import ROOT

READY_TIMEOUT_SECONDS = 60.0
CELL_TIMEOUT_SECONDS = 120.0
ANSI_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class CellFailed(RuntimeError):
    """A cell raised in the kernel; the message is its code and its traceback."""


@dataclass(frozen=True)
class Cell:
    """What a front end saw of one cell.

    Attributes:
        seconds: From sending the request until the reply and the idle status were in, with
            every output before it.
        outputs: The iopub messages that carry output, in order.
    """

    seconds: float
    outputs: tuple[dict[str, Any], ...]

    @property
    def text(self) -> str:
        """What stands under the cell at the end, as plain text.

        As in a front end, an update replaces what it updates and a clear removes all.
        """
        shown: dict[str, str] = {}
        for number, message in enumerate(self.outputs):
            content = message["content"]
            if message["header"]["msg_type"] == "clear_output":
                shown.clear()
                continue
            key = content.get("transient", {}).get("display_id") or f"#{number}"
            if message["header"]["msg_type"] == "update_display_data" and key not in shown:
                continue
            shown[key] = content.get("text", content.get("data", {}).get("text/plain", ""))
        return "".join(shown.values())

    @property
    def output_bytes(self) -> int:
        """Characters that crossed the wire, all MIME types and updates counted."""
        size = 0
        for message in self.outputs:
            content = message["content"]
            size += len(content.get("text", ""))
            size += sum(len(str(value)) for value in content.get("data", {}).values())
        return size


class Notebook:
    """A kernel with its front end's side of the conversation."""

    OUTPUT_TYPES = frozenset(
        {"stream", "display_data", "update_display_data", "execute_result", "clear_output"}
    )

    def __init__(self, client: BlockingKernelClient) -> None:
        self._client = client

    def run(self, code: str, timeout: float = CELL_TIMEOUT_SECONDS) -> Cell:
        """Run a cell and wait for all of its output.

        Raises:
            CellFailed: The cell raised.
            TimeoutError: Reply or idle status did not come in time.
        """
        outputs: list[dict[str, Any]] = []
        deadline = time.monotonic() + timeout
        begin = time.perf_counter()
        request = self._client.execute(code, store_history=True, allow_stdin=False)
        while True:
            message = self._next("iopub", request, deadline, code)
            kind = message["header"]["msg_type"]
            if kind in self.OUTPUT_TYPES:
                outputs.append(message)
            elif kind == "status" and message["content"]["execution_state"] == "idle":
                break
        reply = self._next("shell", request, deadline, code)["content"]
        seconds = time.perf_counter() - begin
        if reply["status"] != "ok":
            traceback = "\n".join(reply.get("traceback", [str(reply)]))
            raise CellFailed(f"{code}\n{ANSI_COLOUR.sub('', traceback)}")
        return Cell(seconds, tuple(outputs))

    def _next(self, channel: str, request: str, deadline: float, code: str) -> dict[str, Any]:
        """The next message on a channel that belongs to the request."""
        get = self._client.get_iopub_msg if channel == "iopub" else self._client.get_shell_msg
        while True:
            left = deadline - time.monotonic()
            try:
                message: dict[str, Any] = get(timeout=max(left, 0.001))
            except Exception as error:  # queue.Empty, on a time-out
                raise TimeoutError(f"nothing more on {channel} for the cell:\n{code}") from error
            if message["parent_header"].get("msg_id") == request:
                return message


@contextlib.contextmanager
def notebook(env: dict[str, str]) -> Iterator[Notebook]:
    """A started kernel in the repository's root; shut down at the exit."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env=env, cwd=str(ROOT), stderr=subprocess.DEVNULL)
    try:
        client: BlockingKernelClient = manager.client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=READY_TIMEOUT_SECONDS)
            yield Notebook(client)
        finally:
            client.stop_channels()
    finally:
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
