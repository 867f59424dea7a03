"""Where this process is, told while its main thread cannot."""

from __future__ import annotations

import linecache
import re

from jaxnb.cells import process_main_thread
from jaxnb.cells.process_sleeping import stays_in, work
from jaxnb.launch import process_compiling
from jaxnb.lockstep import process_interrupts
from jaxnb.lockstep.process_interrupts import AT_PROMPT, TYPED, is_of_cell
from jaxnb.model.group import StackEntry, Whereabouts
from jaxnb.profile.process_looks import quickly_back
from jaxnb.profile.process_stats import rss_bytes
from jaxnb.wire.process_sentinel import ThisProcess

MAX_FRAMES = 40
"""Of a deeper stack the innermost are told."""

ASKS = "/jaxnb/lockstep/process_line.py"
"""Where a thread waits to be let dispatch."""

_CELL = re.compile(r"<cell (\d+)>")


@quickly_back()
def where(process: ThisProcess) -> Whereabouts:
    """Returns where the main thread is, and what the others do."""
    recorder = process.recorder
    recording = recorder.recording(1)
    calls, sleeps_in = stack(), stays_in()
    done = work()  # after that: who runs by now does not sleep there
    # What it waits to be let make comes after all that it has made.
    last = recording.refused or next(iter(recording.dispatches), None)
    return Whereabouts(
        process.index,
        calls,
        sleeps_in,
        done.cpu_seconds,
        rss_bytes(),
        frozenset(done.runnable),
        recorder.cell_seconds(),
        process_interrupts.seconds_since_strike(),
        process_interrupts.seconds_since_missed(),
        frozenset(process_main_thread.entries_of_others()),
        process_main_thread.another_is_in(ASKS),
        last,
        process_compiling.main_thread_does(),
    )


def stack() -> tuple[StackEntry, ...]:
    """Returns the main thread's Python stack, outermost first."""
    calls = process_main_thread.calls()[:MAX_FRAMES]
    typed = next((i for i, each in enumerate(calls) if each.code is AT_PROMPT), len(calls))
    return tuple(_described(each, i > typed) for i, each in reversed([*enumerate(calls)]))


def _described(call: process_main_thread.Call, has_prompt: bool) -> StackEntry:
    code, line = call.code, call.line or None
    cell = _CELL.fullmatch(code.co_filename)
    source = linecache.getline(code.co_filename, line or 0).strip()
    number = int(cell[1]) if cell else 0 if is_of_cell(code) else None
    source = TYPED if has_prompt and number is not None else source
    return StackEntry(code.co_filename, line, code.co_qualname, source, number)
