"""Tries the recorder on the sum that joins a group, at each start.

The hooks into JAX are private names of it. Where one is gone, takes other arguments or returns
something else, that has to come out here, at the start, and not inside a user's ``jit``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxnb.lockstep.process_recorder import Recorder
from jaxnb.model.dispatches import Dispatch

CALLS = 5
"""A first call of a jitted function, two cached ones (JAX's caches are looked up in two ways), and
two of one compiled ahead of time, of which the second is cached. All processes must make as many,
since each waits for the others."""

Call = Callable[[Any], Any]


def run(
    recorder: Recorder,
    calls: Sequence[Call],
    plain: Callable[[], Call],
    argument: Any,
    *,
    is_alone: bool,
) -> tuple[Any, tuple[Dispatch, ...]]:
    """Makes calls that all processes make, with the recorder on.

    Where that fails, or what was recorded is not what was done, the recorder is taken out of JAX
    again, ``recorder.missing`` says why, and the calls that are left are made without it: the other
    processes wait for them.

    Args:
        recorder: This process's.
        calls: ``CALLS`` calls of one computation.
        plain: Returns the same computation for use without the recorder.
        argument: What it takes.
        is_alone: There is one process, so nothing is to be recorded.

    Returns:
        What the last call returned, and what was recorded; nothing if nothing is to be.

    Raises:
        Exception: The computation itself fails.
    """
    made, problem, result = 0, "", None
    with recorder.on_trial():
        try:
            for call in calls:
                result = call(argument)
                made += 1
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        found = recorder.recording().dispatches
    if problem:
        # It is on its way if it was recorded, and was not what failed.
        made += len(found) > made and not found[-1].end
    elif not recorder.missing:
        problem = _what_is_wrong(found, 0 if is_alone else CALLS)
    if problem:
        recorder.take_out(f"on the sum that joins the processes: {problem}")
        found = ()
        if made < CALLS:
            function = plain()
            for _ in range(CALLS - made):
                result = function(argument)
    return result, found


def _what_is_wrong(found: Sequence[Dispatch], wanted: int) -> str:
    """Returns why this cannot be what :func:`run` has done; empty if it can."""
    if [each.number for each in found] != [*range(1, wanted + 1)]:
        return f"{len(found)} of {wanted} dispatches were recorded"
    for each in found:
        if not each.name or not each.fingerprint or not each.collectives or each.arguments is None:
            return f"dispatch {each.number} was recorded as {each}, without all that identifies it"
        if each.end:
            return f"dispatch {each.number} was recorded as {each.end}"
    if len({(each.name, each.fingerprint, each.arguments, each.results) for each in found}) > 1:
        return f"one computation was recorded as {', '.join(map(str, found))}"
    return ""
