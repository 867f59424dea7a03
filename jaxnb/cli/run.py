"""``jaxnb run``: starts a group, has it run a script, and ends with the script's exit status."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict, replace
from errno import EPIPE
from pathlib import Path
from types import FrameType
from typing import Any

from jaxnb.cells.card_error import error_card, error_groups
from jaxnb.cells.result import CellResult
from jaxnb.cli import terminal
from jaxnb.cli.terminal import Terminal, say
from jaxnb.errors import CellTimeoutError, JaxnbError, ProcessDiedError, StartError, UsageError
from jaxnb.labels import processes_label
from jaxnb.launch.deaths import Death, crash_lines, describe_death
from jaxnb.model.scripts import Script, begin_script
from jaxnb.options import StartOptions
from jaxnb.session import Session


def run(options: StartOptions, script: Script, asked: argparse.Namespace) -> int:
    """Runs a script on a group of its own, and returns the exit status.

    Nothing of the group is left when it returns, nor when this process ends in any other way.

    Args:
        options: How the group is started.
        script: The script.
        asked: The command line: the seconds that it may run (``timeout``), whose lines are shown
            (``outputs``), and files for what each process did (``timeline``), and for the outcome
            and the times (``json``).
    """
    started = time.perf_counter()
    status, is_cut = 1, False
    report: dict[str, Any] = {}
    begin_script(script.name)
    try:
        with terminal.installed(), Session(options) as session:
            report["start_seconds"] = time.perf_counter() - started
            for note in session.group.notes:
                say(note)
            status = _Running(session, script, asked, report).wait()
    except (UsageError, StartError, OSError) as error:
        say(str(error))
        status = 1 if isinstance(error, OSError) else 2
    except terminal.Ended as end:
        status = end.status
        is_cut = True
        if "start_seconds" not in report:
            say("interrupted while the processes were starting")
        elif status == 128 + signal.SIGINT:
            say("ended by a second Ctrl-C: what ran was not waited for")
    report |= {"status": status, "seconds": time.perf_counter() - started}
    if asked.json and not _write(asked.json, json.dumps(report, indent=2)):
        status = status or 1
    if is_cut:  # the thread may wait for ever for whoever reads the output
        os._exit(status)
    return status


class _Running:
    """A script that runs: in a thread, as the main thread is the one that gets signals."""

    def __init__(
        self, session: Session, script: Script, asked: argparse.Namespace, report: dict[str, Any]
    ) -> None:
        self._session, self._script, self._asked, self._report = session, script, asked, report
        self._interrupted, self._done = threading.Event(), threading.Event()
        self._struck = 0
        self._broken: OSError | None = None
        self._is_written = True
        self._outcome: CellResult | JaxnbError | None = None
        self._thread = threading.Thread(target=self._run, name="jaxnb-run", daemon=True)

    def wait(self) -> int:
        """Runs it, and returns the exit status."""
        signal.signal(signal.SIGINT, self._on_sigint)
        self._thread.start()
        self._done.wait()
        self._session.close()
        self._thread.join()
        if self._broken is not None:
            return _status_of_broken(self._broken)
        return self._ended(self._outcome) or int(not self._is_written)

    def _on_sigint(self, number: int, _: FrameType | None) -> None:
        self._struck += 1
        if self._struck > 1:
            raise terminal.Ended(number)
        self._interrupted.set()

    def _on_broken(self, error: OSError) -> None:
        self._broken = error
        self._done.set()

    def _run(self) -> None:
        try:
            self._outcome = self._session.run(
                "",
                script=self._script,
                sink=Terminal(self._on_broken),
                timeout=self._asked.timeout,
                outputs=self._asked.outputs,
                interrupted=self._interrupted,
                raise_on_error=False,
            )
        except JaxnbError as error:
            self._outcome = error
        finally:
            self._write_timeline()
            self._done.set()

    def _write_timeline(self) -> None:
        if not self._asked.timeline:
            return
        if self._session.state != "ready":
            why = "a process died, or did not end the script"
            say(f"{self._asked.timeline} was not written: {why}")
            return
        found = self._session.timeline()
        kind = Path(self._asked.timeline).suffix
        if kind == ".json":
            text = json.dumps(asdict(found), default=str)
        else:
            formats = found._repr_mimebundle_()
            text = formats["text/html" if kind == ".html" else "text/plain"]
        self._is_written = _write(self._asked.timeline, text)

    # ---------------------------------------------------------------------- how it ended

    def _ended(self, outcome: CellResult | JaxnbError | None) -> int:
        """Says how the script ended, and returns the exit status."""
        result = outcome if isinstance(outcome, CellResult) else getattr(outcome, "result", None)
        if result is not None:
            self._report["processes"] = _facts(result)
        match outcome:
            case CellResult():
                return self._returned(outcome)
            case CellTimeoutError():
                self._write_errors(outcome.result)
                say(f"{self._script.name} ran longer than {self._asked.timeout:g} s and was ended")
                return terminal.TIMED_OUT
            case ProcessDiedError():
                return self._died()
            case JaxnbError():
                say(str(outcome))
        return 1

    def _returned(self, result: CellResult) -> int:
        groups = error_groups(result)
        if any("jax_num_cpu_devices" in each.error.message for each in groups):
            say("JAX has started when a script begins: use `--devices-per-process N`")
        if not groups:
            if alone := self._alone_text(result):
                say(alone)
            return 0
        exits = [each for each in groups if each.error.type_name == "SystemExit"]
        told = {i for each in exits for i in each.processes}
        others = {i: each for i, each in result.per_process.items() if i not in told}
        if self._struck and all(g.error.type_name == "KeyboardInterrupt" for g in groups):
            at = sorted({line for group in groups for line in group.lines})
            where = f" at line {', '.join(map(str, at))}" if at else ""
            say(f"interrupted: all processes stopped{where} of {self._script.name}")
            return 128 + signal.SIGINT
        if others:
            self._write_errors(replace(result, per_process=others))
        for each in exits:
            lines = f", line {each.lines[0]}" if each.lines else ""
            status = each.error.message
            who = processes_label(each.processes)
            say(f"{who} ended with exit status {status} ({self._script.name}{lines})")
        return _status_of(groups[0].error.type_name, groups[0].error.message)

    def _write_errors(self, result: CellResult) -> None:
        card = error_card(result, ansi=sys.stderr.isatty(), is_whole=True)
        sys.stderr.write(f"{card.text}\n")

    def _alone_text(self, result: CellResult) -> str:
        """Returns what is said to who may have expected that processes work together."""
        count = len(result.per_process)
        has_computed = all(each.compiles for each in result.per_process.values())
        has_threads = b"thread" in self._script.source.lower()  # which are not counted
        is_told = self._session.history[-1].dispatches != 0 or has_threads
        if count < 2 or not has_computed or is_told:
            return ""
        return (
            f"no computation went over several processes: each of the {count} has computed all of "
            f"{self._script.name} by itself. `jax.make_mesh` and shardings divide the work."
        )

    def _died(self) -> int:
        deaths = sorted(self._session.deaths, key=lambda each: each.at)
        count = self._session.num_processes
        if len(deaths) == count and not any(each.status for each in deaths):
            return 0  # os._exit(0) on all
        told: set[str] = set()
        for death in deaths:
            lines = crash_lines(death)
            say(self._death_text(death, count) + ("" if lines in told else lines))
            told.add(lines)
        status = next((each.status for each in deaths if each.status), 1)
        return 128 - status if status < 0 else status

    def _death_text(self, death: Death, count: int) -> str:
        text = f"{describe_death(death, count)} while it ran {self._script.name}"
        if death.out_of_memory:
            return f"{text}. Likely out of memory: the kernel has just killed a process for it."
        return f"{text}. What it printed last may be missing."


def _facts(result: CellResult) -> list[dict[str, Any]]:
    return [
        {
            "process_index": index,
            "seconds": each.seconds,
            "compile_seconds": each.compile_seconds,
            "error": None if each.error is None else str(each.error),
            "line": None if each.error is None else each.error.line,
        }
        for index, each in sorted(result.per_process.items())
    ]


def _status_of(kind: str, message: str) -> int:
    if kind == "SystemExit":
        return int(message)
    return 128 + signal.SIGINT if kind == "KeyboardInterrupt" else 1


def _status_of_broken(error: OSError) -> int:
    """Returns the status after output could not be written: quietly for a closed pipe."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(null, stream.fileno())  # what Python writes as it ends would fail again
    if error.errno == EPIPE:
        return 128 + signal.SIGPIPE
    say(f"the output could not be written: {error.strerror}. All processes were ended.")
    return 1


def _write(file: str, text: str) -> bool:
    """Writes a file, or says why not; returns whether it is written."""
    try:
        Path(file).write_text(text + "\n")
    except OSError as error:
        say(f"{file} could not be written: {error.strerror}")
        return False
    return True
