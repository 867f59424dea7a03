"""Where this process is, told while its main thread cannot."""

from __future__ import annotations

import linecache
import re

from jaxnb.engine import interrupts, main_thread
from jaxnb.engine.looks import quickly_back
from jaxnb.engine.sleeping import stays_in, work
from jaxnb.engine.stats import rss_bytes
from jaxnb.engine.this_process import ThisProcess
from jaxnb.model.whereabouts import StackEntry, Whereabouts

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
        interrupts.seconds_since_strike(),
        interrupts.seconds_since_missed(),
        frozenset(main_thread.entries_of_others()),
        main_thread.another_is_in(ASKS),
        last,
    )


def stack() -> tuple[StackEntry, ...]:
    """Returns the main thread's Python stack, outermost first."""
    return tuple(map(_described, main_thread.calls()[:MAX_FRAMES][::-1]))


def _described(call: main_thread.Call) -> StackEntry:
    code, line = call.code, call.line or None
    cell = _CELL.fullmatch(code.co_filename)
    source = linecache.getline(code.co_filename, line or 0).strip()
    number = int(cell[1]) if cell else None
    return StackEntry(code.co_filename, line, code.co_qualname, source, number)
