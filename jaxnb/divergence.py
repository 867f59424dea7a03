"""Pure: what processes recorded, to where they parted, in words too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from jaxnb import programs
from jaxnb.labels import processes_label, ranks_label
from jaxnb.model import Agreeing, Dispatch, Divergence, DivergenceKind, Recording, Side, Trail
from jaxnb.model.dispatches import Cause, Processes
from jaxnb.provenance import arguments_text

_OPEN = {"broken", "interrupted"}
"""Ends after which nobody knows how far the other processes got."""


def agree(trails: Mapping[int, Sequence[Trail]]) -> bool:
    """Whether all processes dispatched the same.

    Args:
        trails: Process index to what it dispatched in short; of every process of the group,
            empty for those that were not asked to run the cell.
    """
    by_process = {i: {t.processes: t for t in each} for i, each in trails.items()}
    spanned = {t.processes for each in trails.values() for t in each}
    return all(
        len({by_process.get(i, {}).get(processes) for i in processes}) == 1
        and not _are_swapped([by_process[i][processes] for i in processes])
        for processes in spanned
    ) and not any(t.struck for each in trails.values() for t in each)


def _are_swapped(trails: Collection[Trail]) -> bool:
    """Whether the same places in the cell's code dispatched, in another order.

    A branch for each process has places of its own, and may do the same as the others.
    """
    return len({t.sites for t in trails}) > 1 and len({t.site_sum for t in trails}) == 1


def compare(
    cell: int,
    recordings: Mapping[int, Recording],
    notes: Mapping[int, str],
    unknown: Collection[int] = (),
    *,
    was_cut: bool = False,
    same: Collection[tuple[Processes, int]] = (),
) -> Divergence | None:
    """Returns where processes parted first; None if their recordings agree.

    A computation over some of the processes is compared among those.

    Args:
        cell: The cell's number.
        recordings: Process index to what it recorded. One that is missing dispatched nothing.
        notes: Process index to why it dispatched no more: ``"raised ValueError at line 3"``.
        unknown: Processes of which nobody knows what they recorded: the dead. The others are
            compared.
        was_cut: The processes were stopped anywhere: where some dispatched what others did
            not come to any more is told only if that is all there is.
        same: Dispatches, by processes and number, of which the inputs are known to be the same
            though their digests differ.
    """
    spanned = {t.processes for each in recordings.values() for t in each.trails}
    known = {processes: tuple(i for i in processes if i not in unknown) for processes in spanned}
    found = [
        parted
        for processes in sorted(spanned)
        if (
            parted := _compare_over(
                cell,
                processes,
                known[processes],
                recordings,
                notes,
                {number for of, number in same if of == processes},
            )
        )
    ]
    if not found:
        return None
    first = min(found, key=lambda each: (was_cut and not is_mismatch(each), _when(each)))
    pending = any(each.pending for each in found)
    return Divergence(first.cell, first.number, first.kind, first.sides, pending)


def of_unsure_inputs(
    recordings: Mapping[int, Recording], unknown: Collection[int] = ()
) -> dict[Processes, list[int]]:
    """Returns the dispatches that differ only in the numbers of their arrays.

    Those may still be the same arrays: see :func:`jaxnb.provenance.are_one`.

    Args:
        recordings: Process index to what it recorded.
        unknown: Processes of which nobody knows what they recorded.
    """
    by_place: dict[tuple[Processes, int], dict[int, Dispatch]] = {}
    for i, each in recordings.items():
        for dispatch in each.dispatches:
            by_place.setdefault((dispatch.processes, dispatch.number), {})[i] = dispatch
    found: dict[Processes, list[int]] = {}
    for (processes, number), made in sorted(by_place.items()):
        is_of_all = set(made) == set(processes) - set(unknown)
        alike = {(each.fingerprint, each.end, each.host) for each in made.values()}
        inputs = {each.inputs for each in made.values()}
        if is_of_all and len(alike) == 1 and len(inputs) > 1 and alike.pop()[1] == "":
            found.setdefault(processes, []).append(number)
    return found


def is_mismatch(divergence: Divergence) -> bool:
    """Whether processes dispatched different things at one place.

    Else they did the same, and some were stopped or failed before others: which is no mistake of
    the code's where the user stopped it.
    """
    done = {
        (side.dispatch.fingerprint, side.dispatch.inputs)
        for side in divergence.sides
        if side.dispatch is not None
    }
    is_forgotten = divergence.kind != "failed" and all(s.dispatch is None for s in divergence.sides)
    return len(done) > 1 or (is_forgotten and len({side.note for side in divergence.sides}) == 1)


def is_left_behind(divergence: Divergence, waiting: Collection[int]) -> bool:
    """Whether processes wait in what others, which have left the cell, did not dispatch.

    Args:
        divergence: Where the processes parted.
        waiting: Those that wait; the others have left.
    """
    mine, others = set[tuple[int, str] | None](), set[tuple[int, str] | None]()
    for side in divergence.sides:
        dispatch = side.dispatch
        # With other inputs it is the same computation, which comes to its end.
        what = None if dispatch is None else (dispatch.fingerprint, dispatch.end)
        if not set(side.processes).isdisjoint(waiting):
            mine.add(what)
        if not set(side.processes).issubset(waiting):
            others.add(what)
    # Who has dispatched nothing there has not come so far: it does not wait in that.
    return any(others - {each} for each in mine - {None})


def _when(divergence: Divergence) -> float:
    times = [side.dispatch.seconds for side in divergence.sides if side.dispatch is not None]
    return min(times, default=0.0)


def _compare_over(
    cell: int,
    processes: Processes,
    known: Processes,
    recordings: Mapping[int, Recording],
    notes: Mapping[int, str],
    same: Collection[int],
) -> Divergence | None:
    """Compares what was dispatched over processes, among those of which that is known."""
    counts = {i: _count(recordings.get(i), processes) for i in known}
    made = {
        i: {d.number: d for d in recordings[i].dispatches if d.processes == processes}
        if i in recordings
        else {}
        for i in known
    }
    remembered = [min(each) for i, each in made.items() if each]
    start = max(remembered, default=1)
    for number in range(start, max(counts.values(), default=0) + 1):
        at = {i: made[i].get(number) for i in known}
        if number in same:
            continue
        ends = {each.end for each in at.values() if each is not None}
        if len({_identity(each) for each in at.values()}) > 1 or ends & _OPEN:
            rest = {i: [d for n, d in each.items() if n >= number] for i, each in made.items()}
            older = number == start > 1
            return Divergence(
                cell=cell,
                number=0 if older else number,
                kind=_kind(at, rest),
                sides=sides(at, notes),
                pending=_is_pending(rest),
            )
    trails = [_trail(recordings.get(i), processes) for i in known]
    if not same and (found := _compare_trails(cell, processes, known, recordings)):
        return found  # else they differ as the inputs' digests do
    return _compare_sites(cell, made, trails)


def _compare_sites(
    cell: int, made: Mapping[int, Mapping[int, Dispatch]], trails: Sequence[Trail | None]
) -> Divergence | None:
    """Returns where the same places in the cell began to dispatch in another order."""
    if None in trails or not _are_swapped([t for t in trails if t is not None]):
        return None
    for number in sorted({n for each in made.values() for n in each}):
        at = {i: each.get(number) for i, each in made.items()}
        if len({each.site for each in at.values() if each is not None}) > 1:
            found: dict[int, list[int]] = {}
            for i, each in at.items():
                found.setdefault(each.site if each else 0, []).append(i)
            who = sorted(found.values(), key=lambda those: -len(those))
            parted = tuple(Side(tuple(those), at[those[0]], "") for those in who)
            return Divergence(cell, number, "order", parted, pending=False)
    return None


def _compare_trails(
    cell: int, processes: Processes, known: Processes, recordings: Mapping[int, Recording]
) -> Divergence | None:
    """Returns that processes parted before what they remember, if they did."""
    groups: dict[Trail | None, list[int]] = {}
    for i in known:
        groups.setdefault(_trail(recordings.get(i), processes), []).append(i)
    if len(groups) < 2 and not any(trail and trail.struck for trail in groups):
        return None
    found = tuple(
        Side(tuple(who), None, f"{trail.count if trail else 0} in all")
        for trail, who in sorted(groups.items(), key=lambda group: -len(group[1]))
    )
    same = len({(trail.count, trail.digest) if trail else None for trail in groups}) == 1
    # Of what kind they were is not known any more: the worst is taken for true.
    return Divergence(cell, 0, "failed" if same else "computation", found, pending=True)


def _trail(recording: Recording | None, processes: Processes) -> Trail | None:
    trails = recording.trails if recording is not None else ()
    return next((t for t in trails if t.processes == processes), None)


def _count(recording: Recording | None, processes: Processes) -> int:
    trail = _trail(recording, processes)
    return trail.count if trail is not None else 0


def _identity(dispatch: Dispatch | None) -> tuple[int, int, str] | None:
    return None if dispatch is None else (dispatch.fingerprint, dispatch.inputs, dispatch.end)


def sides(at: Mapping[int, Dispatch | None], notes: Mapping[int, str]) -> tuple[Side, ...]:
    """Returns who did what at one place, those who did most alike first.

    Args:
        at: Process index to its dispatch, or None.
        notes: Process index to why it made none.
    """
    groups: dict[tuple[object, int, str], list[int]] = {}
    for i, dispatch in sorted(at.items()):  # so that each process says the same
        note = notes.get(i, "had finished") if dispatch is None else ""
        number = 0 if dispatch is None else dispatch.number
        groups.setdefault((_identity(dispatch), number, note), []).append(i)
    found = [Side(tuple(who), at[who[0]], note) for (_, _, note), who in groups.items()]
    return tuple(sorted(found, key=lambda side: (side.dispatch is None, -len(side.processes))))


def _kind(
    at: Mapping[int, Dispatch | None], rest: Mapping[int, Sequence[Dispatch]]
) -> DivergenceKind:
    if None in at.values():
        return "missing"
    here = [dispatch for dispatch in at.values() if dispatch is not None]
    if len({each.fingerprint for each in here}) == 1:
        return "failed" if any(each.end for each in here) else "inputs"
    counted = {frozenset(Counter(d.fingerprint for d in each).items()) for each in rest.values()}
    if len(counted) == 1:
        return "order"
    if len({each.name for each in here}) == 1 and len({each.shapes for each in here}) > 1:
        return "shapes"
    return "computation"


def _is_pending(rest: Mapping[int, Sequence[Dispatch]]) -> bool:
    """Whether collectives may be waiting, or have met the wrong ones."""
    waiting = [[d for d in each if d.collectives] for each in rest.values()]
    if any(d.end in _OPEN for each in waiting for d in each):
        return True
    return len({tuple((d.fingerprint, d.end) for d in each) for each in waiting}) > 1


_KINDS: Mapping[DivergenceKind, str] = {
    "order": "The same computations came in another order.",
    "missing": "Not all processes took part.",
    "shapes": "The shapes differ.",
    "computation": "The computations differ, in what they do or in a constant, or in "
    "the order of their meshes' devices.",
    "failed": "It did not come to its end everywhere.",
    "inputs": "The computation is the same, but its inputs differ, which JAX does not check.",
}


def sentence_of(divergence: Divergence) -> str:
    """Returns who dispatched what: ``"process 1 dispatched …; processes 0,2-3 dispatched …"``."""
    if all(side.dispatch is None for side in divergence.sides):
        return _unknown_text(divergence)
    everyone = next(s.dispatch.processes for s in divergence.sides if s.dispatch is not None)
    where = (
        f"dispatch {divergence.number} over {processes_label(everyone)}"
        if divergence.number
        else f"dispatches over {processes_label(everyone)} that are no longer remembered"
    )
    if divergence.kind == "inputs" and len({str(side.dispatch) for side in divergence.sides}) == 1:
        groups = " / ".join(ranks_label(side.processes) for side in divergence.sides)
        dispatch = divergence.sides[0].dispatch
        return f"at {where}: all dispatched {dispatch}, with other inputs on {groups}"
    return f"at {where}: {'; '.join(map(_side_text, divergence.sides))}"


def _side_text(side: Side) -> str:
    who = processes_label(side.processes)
    if side.dispatch is None:
        return f"{who} dispatched nothing ({side.note})"
    return f"{who} dispatched {side.dispatch}"


def _unknown_text(divergence: Divergence) -> str:
    sides = (f"{processes_label(side.processes)} ({side.note})" for side in divergence.sides)
    return f"so early that the dispatch is no longer remembered: {' apart from '.join(sides)}"


def describe(divergence: Divergence) -> str:
    """Returns where the processes parted, and what can be trusted since."""
    return " ".join(
        [
            f"The processes parted in cell [{divergence.cell}], {sentence_of(divergence)}.",
            _what_differs(divergence),
            _trust(divergence),
        ]
    )


def _what_differs(divergence: Divergence) -> str:
    if divergence.program is not None:
        return divergence.program.summary
    return arguments_text(divergence.differences) or _KINDS[divergence.kind]


def at_length(divergence: Divergence) -> str:
    """Returns :func:`describe`, and below it how the programs differ, if that is known."""
    program = divergence.program
    diff = f"\n{programs.text_of(program)}" if program is not None else ""
    return f"{describe(divergence)}{diff}"


def cause_of(refused: Sequence[Side]) -> Cause:
    """Returns why processes did not agree in strict mode, by what each was about to dispatch."""
    about = [side.dispatch for side in refused if side.dispatch is not None]
    if len({each.fingerprint for each in about}) > 1:
        return "program"
    here = {i for side in refused for i in side.processes}
    is_whole = all(here >= {*each.processes} for each in about)  # then their replicas differ
    return "input" if len(refused) > 1 or is_whole else "missing"


def programs_to_compare(found: Sequence[Side]) -> dict[Processes, int]:
    """Returns which two programs tell most of how the sides differ: who has it, to fingerprint."""
    first: dict[int, Processes] = {}
    for side in found:
        if side.dispatch is not None:
            first.setdefault(side.dispatch.fingerprint, side.processes)
    two = list(first.items())[:2]
    return {who: fingerprint for fingerprint, who in two} if len(two) == 2 else {}


def inputs_at(divergence: Divergence) -> tuple[Processes, int] | None:
    """Returns which dispatch got different inputs: its processes and number; None if none did."""
    made = [side.dispatch for side in divergence.sides if side.dispatch is not None]
    if divergence.number == 0 or len({each.fingerprint for each in made}) != 1:
        return None
    return (made[0].processes, made[0].number) if len({d.inputs for d in made}) > 1 else None


def _trust(divergence: Divergence) -> str:
    """Returns whether what was computed since can be trusted."""
    takers = [side for side in divergence.sides if side.dispatch is not None]
    if divergence.kind == "missing" and len(takers) == 1:
        others = [i for side in divergence.sides if side not in takers for i in side.processes]
        return (
            f"Its results have no part on {processes_label(others)}: what was computed from "
            "there on cannot be trusted; what was computed before can."
        )
    return (
        "What was computed over these processes from there on is made of parts that do not "
        "belong together, and cannot be trusted; what was computed before can."
    )


def disagreement(found: Sequence[Side], mine: Dispatch) -> str:
    """Returns the message of strict mode: nothing has run yet.

    Args:
        found: Who was about to do what.
        mine: What this process was about to do.
    """
    does = [f"{processes_label(side.processes)}: {_was_to(side, mine)}" for side in found]
    made = {side.dispatch.fingerprint for side in found if side.dispatch is not None}
    if len(found) > 1 and all(_was_to(side, mine) == f"was to dispatch {mine}" for side in found):
        differs = "with different inputs" if len(made) == 1 else "different programs"
        groups = " / ".join(ranks_label(side.processes) for side in found)
        does = [f"all were to dispatch {mine}, but {differs} on processes {groups}"]
    everyone = processes_label(mine.processes)
    trust = "so nobody waits and all that was computed before can be trusted"
    if any(side.dispatch is not None and _is_other_number(side.dispatch, mine) for side in found):
        trust = (
            "but some have made dispatches before that others have not, as their code went on "
            "after an interrupt or an error: what those computed cannot be trusted"
        )
    return (
        f"The processes do not agree on dispatch {mine.number} over {everyone}: "
        f"{'; '.join(does)}. Nothing of it has run on any of them, {trust}."
    )


def unequal_replicas_text(mine: Dispatch, differing: Sequence[Sequence[int]]) -> str:
    """Returns the message of strict mode where replicated arguments differ: nothing has run.

    Args:
        mine: What was to be dispatched.
        differing: Who has the same; one process alone if its own devices differ.
    """
    who = " ≠ ".join(processes_label(group) for group in differing)
    if len(differing) == 1:
        who = f"the devices of {who} hold other bytes each"
    return (
        f"The processes were about to dispatch {mine} with replicated arguments whose bytes "
        f"differ: {who}. Nothing of it has run on any of them. The notebook says which arguments, "
        "and what to type."
    )


def ring_text(waiting: Mapping[int, Agreeing]) -> str:
    """Returns the message of strict mode where processes wait for each other in a ring.

    Args:
        waiting: Process index to what it waits for, in the order of the ring.
    """
    does = [
        f"process {index}: was to dispatch {each.dispatch}, over "
        f"{processes_label(each.dispatch.processes)}, and waited for process {each.waits_for}"
        for index, each in waiting.items()
    ]
    return (
        f"The processes wait for each other in a ring: {'; '.join(does)}. Nothing of it has run on "
        "any of them, so all that was computed before can be trusted. What several processes take "
        "part in has to come in the same order on all of them."
    )


def _was_to(side: Side, mine: Dispatch) -> str:
    its = side.dispatch
    if its is None:
        return side.note
    what = f"was to dispatch {its}"
    if its.processes != mine.processes:
        what += f", over {processes_label(its.processes)}"
    return f"{what}, as dispatch {its.number}" if _is_other_number(its, mine) else what


def _is_other_number(its: Dispatch, mine: Dispatch) -> bool:
    return its.processes == mine.processes and its.number != mine.number
