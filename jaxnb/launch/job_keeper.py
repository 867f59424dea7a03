"""The keeper of a job: submits it by ipyparallel's launcher, says what becomes of it, cancels it.

It is started as ``python -m jaxnb.launch.job_keeper OWNER_PID`` and reads commands from its
standard input, as a fork server does. When that ends, or the owner, however the notebook has ended,
it cancels the job and ends.

Commands:
    ``prepare``: make the launcher; answers with how many ``agents`` it starts, whether it
        ``is_batch`` (a job in a queue), and the ``counts`` of processes by host, if known.
    ``submit``: submit the job; answers with its ``id``, and after how many ``silent_seconds`` a
        node that does not answer counts as down.
    ``follow``: say what becomes of a job that is there already, and do not cancel it; answers
        likewise.
    ``look``: answer what has become of it: as an event, without ``event``.
    ``end``: cancel the job, and end; there is no answer.

Events: ``{"event": "job", "state": …, "reason": …, "seconds_left": …}`` whenever that changes, and
with ``output``, the last lines that it has written, when it is over.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from typing import Any

from jaxnb.errors import JaxnbError
from jaxnb.launch import lifeline, slurm_jobs
from jaxnb.launch.forkserver import prepare
from jaxnb.launch.job import FAILED

QUICK_SECONDS, QUICK_FOR_SECONDS, SLOW_SECONDS = 1.0, 60.0, 15.0
"""So often the job is looked at: in the first minute, and later. Each is a program's call."""

OUTPUT_LINES = 40


class Keeper:
    """Follows one job.

    Args:
        event_fd: Where answers and events are written.
        owner_pid: The notebook's process.
    """

    def __init__(self, event_fd: int, owner_pid: int) -> None:
        self._event_fd, self._owner_pid = event_fd, owner_pid
        self._launcher: Any = None
        self._job_id, self._is_ours, self._is_slurm, self._is_queued = "", False, False, False
        self._last: dict[str, Any] = {}
        self.ends = asyncio.Event()

    def _emit(self, **message: Any) -> None:
        data = json.dumps(message).encode() + b"\n"
        try:
            os.write(self._event_fd, data)
        except BrokenPipeError:
            self.ends.set()

    async def serve(self, commands: asyncio.StreamReader) -> None:
        """Carries out commands until they end, and cancels the job."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.ends.set)
        if (owner := lifeline.open_process(self._owner_pid)) is not None:
            loop.add_reader(owner, self.ends.set)  # whom it has forked may hold the commands' pipe
        tasks = [asyncio.create_task(self._read(commands)), asyncio.create_task(self._follow())]
        await self.ends.wait()
        for task in tasks:
            task.cancel()
        if self._is_ours and not self._last.get("is_over"):
            await self._cancel()

    async def _cancel(self) -> None:
        try:
            stopping = self._launcher.stop()
            if inspect.isawaitable(stopping):
                await stopping
        except subprocess.CalledProcessError:
            # It may just have ended by itself.
            if not (await self._look())["is_over"]:
                sys.exit("The job could not be cancelled.")

    async def _read(self, commands: asyncio.StreamReader) -> None:
        while line := await commands.readline():
            command = json.loads(line)
            op, command_id = command.pop("op"), command.pop("id")
            if op == "end":
                break
            try:
                answer = await getattr(self, f"_do_{op}")(**command)
            except subprocess.CalledProcessError as error:  # it has said why on standard error
                said = f"{FAILED} `{error.cmd[0]}` has ended with status {error.returncode}."
                self._emit(reply=command_id, error=said)
            except FileNotFoundError as error:
                said = f"`{error.filename}` is not on PATH of this machine. Nothing was started."
                self._emit(reply=command_id, error=said)
            except JaxnbError as error:
                self._emit(reply=command_id, error=str(error))
            except Exception as error:
                traceback.print_exc()
                self._emit(reply=command_id, error=f"{FAILED} {type(error).__name__}: {error}")
            else:
                self._emit(reply=command_id, **answer)
                if self._job_id:
                    self._tell(await self._look())
        self.ends.set()

    async def _do_prepare(self, **asked: Any) -> dict[str, Any]:
        from jaxnb.launch.job_launchers import make_launcher

        made = make_launcher(**asked)
        self._launcher, self._is_slurm = made.launcher, made.is_slurm
        self._is_queued = made.is_batch
        counts = dict(made.counts)
        return {"agents": made.agents, "is_batch": made.is_batch, "counts": counts}

    async def _do_submit(self, agents: int, variables: dict[str, str]) -> dict[str, Any]:
        self._launcher.environment = {**self._launcher.environment, **variables}
        started = self._launcher.start(agents)
        if inspect.isawaitable(started):
            started = await started
        # Of a program on this host that is its process.
        self._job_id, self._is_ours = str(started or getattr(self._launcher, "pid", "")), True
        self._launcher.on_stop(lambda _: self._tell(self._over("")))
        return await self._begun()

    async def _do_follow(self, job_id: str) -> dict[str, Any]:
        self._job_id, self._is_slurm = job_id, True
        return await self._begun()

    async def _begun(self) -> dict[str, Any]:
        seconds = await slurm_jobs.silent_seconds() if self._is_slurm else None
        return {"id": self._job_id, "silent_seconds": seconds}

    async def _do_look(self) -> dict[str, Any]:
        return await self._look()

    async def _follow(self) -> None:
        """Says what becomes of the job, until it is over."""
        quick_until = time.monotonic() + QUICK_FOR_SECONDS
        while not self._last.get("is_over"):
            if self._job_id:
                self._tell(await self._look())
            is_quick = time.monotonic() < quick_until
            await asyncio.sleep(QUICK_SECONDS if is_quick else SLOW_SECONDS)

    def _tell(self, now: dict[str, Any]) -> None:
        if now != self._last:
            self._last = now
            self._emit(event="job", **now)

    async def _look(self) -> dict[str, Any]:
        if self._last.get("is_over") or not self._is_slurm:
            return self._last or {"state": "" if self._is_queued else "RUNNING", "is_over": False}
        found = await slurm_jobs.job_state(self._job_id)
        if found is None:
            return self._last or {"state": "", "is_over": False}
        return self._over(**found) if found["is_over"] else found

    def _over(self, state: str, reason: str = "", **_: Any) -> dict[str, Any]:
        lines = self._launcher.get_output(remove=True).splitlines() if self._is_ours else []
        output = "\n".join(lines[-OUTPUT_LINES:])
        return {"state": state, "reason": reason, "is_over": True, "output": output}


async def run(command_fd: int, event_fd: int) -> None:
    """Runs the keeper until its commands end."""
    commands = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    pipe = os.fdopen(command_fd, "rb")
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), pipe)
    await Keeper(event_fd, int(sys.argv[1])).serve(commands)


def main() -> None:
    """Runs the keeper: ``python -m jaxnb.launch.job_keeper OWNER_PID``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(run(*prepare()))
    sys.exit()


if __name__ == "__main__":
    main()
