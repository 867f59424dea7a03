"""How processes have parted, told from what each has dispatched."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from difflib import SequenceMatcher, unified_diff
from itertools import takewhile

from jaxnb.display.text import middle
from jaxnb.labels import capitalized, processes_label, ranks_label
from jaxnb.model import dispatches as model
from jaxnb.model.scripts import cell_label, in_notebook


def unequal_replicas(said: Mapping[int, model.Dispatch]) -> list[list[int]]:
    """Returns which processes give the same replicas to a dispatch, where they differ; or nothing.

    Args:
        said: Process index to the dispatch as it is about to make it. All must be asked: who holds
            other parts than those that differ has to learn of it too.
    """
    by_holders: dict[tuple[int, ...], dict[int, list[int]]] = {}
    for process, dispatch in said.items():
        for holders, value in dispatch.replicas:
            if len(holders) == 1:  # its own devices hold other bytes each
                return [[process]]
            by_holders.setdefault(holders, {}).setdefault(value, []).append(process)
    differ = (sorted(found.values()) for found in by_holders.values() if len(found) > 1)
    return next(differ, [])


MAX_LINES = 20
"""So many lines of a diff are shown."""

CONTEXT = 2

MAX_COMPARED = 1500
"""So many lines that differ are compared line by line; more take seconds."""

MAX_CHARS = 110

_LAYOUT = re.compile(r"(?<=\])\{[^}]*\}")
_NAME = re.compile(r" tmp_\d+(?=[,)])")
_CONSTANT = re.compile(r"^(?:ROOT )?(\S+) constant\((.*)\)$")


def difference(
    programs: Mapping[tuple[int, ...], Sequence[model.ProgramLine]],
) -> model.ProgramDifference | None:
    """Returns how the first two programs differ; None if nothing is known of one.

    Args:
        programs: Who dispatched it, to a program; in the order in which they are told. Of those
            after the second it is only said which constant they have, if all differ in that first.
    """
    known = [(who, lines) for who, lines in programs.items() if lines]
    if len(known) < 2:
        return None
    (first, second), programs_known = zip(*known[:2], strict=True)
    # Names and layouts of all that follows a difference differ too: at first they are left out.
    for simple, has_all in ((_without_names, False), (str, True)):
        ours, theirs = (
            [each for each in lines if has_all or not _PLUMBING.match(each.text)]
            for lines in programs_known
        )
        mine, its = ([simple(each.text) for each in lines] for lines in (ours, theirs))
        if mine != its:
            break
    else:
        return None
    who = first, second
    low = _count_equal(mine, its)
    high = _count_equal(mine[low:][::-1], its[low:][::-1])
    shown = [
        [_shown(text, line) for text, line in zip(texts, lines, strict=True)][
            max(0, low - CONTEXT) : max(low, len(texts) - high) + CONTEXT
        ][:MAX_COMPARED]
        for texts, lines in ((mine, ours), (its, theirs))
    ]
    names = [processes_label(each) for each in who]
    changed = list(unified_diff(shown[0], shown[1], names[0], names[1], n=CONTEXT, lineterm=""))
    lines = _shortened([line for line in changed if not line.startswith("@@")])
    left_out = sum(line[0] in "-+" for line in lines[MAX_LINES:])
    summary = _summary(mine, its, ours, theirs, who)
    shown_lines, constants = tuple(lines[:MAX_LINES]), _constants(known)
    return model.ProgramDifference(who, shown_lines, left_out, summary, constants)


def _constants(
    programs: Sequence[tuple[model.Processes, Sequence[model.ProgramLine]]],
) -> tuple[tuple[model.Processes, str], ...]:
    """Returns who has which constants, if programs differ in nothing else, and in few of them."""
    operations = [[e for e in lines if not _PLUMBING.match(e.text)] for _, lines in programs]
    if len({len(each) for each in operations}) > 1:
        return ()
    held: dict[tuple[str, ...], None] = {}
    for at in zip(*operations, strict=True):
        if len({_without_names(each.text) for each in at}) == 1:
            continue
        found = [_CONSTANT.match(each.text) for each in at]
        known = zip(found, at, strict=True)
        held[tuple(f"{_value(each)}{_at(line.source)}" for each, line in known if each)] = None
        if not all(found) or len(held) > _MOST_CONSTANTS:
            return ()
    told = (" and ".join(each) for each in zip(*held, strict=True))
    return tuple((who, text) for (who, _), text in zip(programs, told, strict=False))


_MOST_CONSTANTS = 3

_COMPLEX = re.compile(r"\(([^(),]+), ([^(),]+)\)")


def _value(constant: re.Match[str]) -> str:
    """Returns a constant as Python writes it, which has no parentheses for a complex number."""
    return _COMPLEX.sub(r"\1+\2j", constant[2]).replace("+-", "-")


_PLUMBING = re.compile(r"^(?:ROOT )?(?:\(.*\)|\S+) (?:parameter|tuple|get-tuple-element)\(")
"""What says how values are handed on. It moves about, and differs where something else does."""


def _without_names(text: str) -> str:
    return _NAME.sub("", _LAYOUT.sub("", text))


def _shown(text: str, line: model.ProgramLine) -> str:
    text = text.removeprefix("ROOT ")
    return f"{text}{SOURCE}{_place(line.source)}" if line.source else text


SOURCE = "   # "


def _shortened(lines: Sequence[str]) -> list[str]:
    """Shortens long lines, but not where they differ from the line that has come in their place."""
    found = [*lines[:2]]
    removed = [line for line in lines[2:] if line[0] == "-"]
    added = [line for line in lines[2:] if line[0] == "+"]
    pairs = dict(zip(removed, added, strict=False))
    pairs |= dict(zip(added, removed, strict=False))
    for line in lines[2:]:
        text, mark, place = line.partition(SOURCE)
        if len(text) > MAX_CHARS:
            at = 0
            if other := pairs.get(line, ""):
                at = next(i for i in range(1, len(line)) if line[: i + 1][1:] != other[: i + 1][1:])
            if at > MAX_CHARS - 30:
                text = f"{text[:50]} … {text[at - 20 : at + 50]}"
            text = text if len(text) <= MAX_CHARS + 20 else f"{text[:MAX_CHARS]} …"
        found.append(f"{text}{mark}{place}")
    return found


def _place(source: str) -> str:
    found = re.fullmatch(r"<cell (\d+)>:(\d+)", source)
    return f"line {found[2]} of {cell_label(int(found[1]))}" if found else source


def _count_equal(mine: Sequence[str], its: Sequence[str]) -> int:
    """Returns how many lines at the start are equal."""
    pairs = zip(mine, its, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _summary(
    mine: Sequence[str],
    its: Sequence[str],
    ours: Sequence[model.ProgramLine],
    theirs: Sequence[model.ProgramLine],
    who: tuple[tuple[int, ...], tuple[int, ...]],
) -> str:
    labels = [processes_label(each) for each in who]
    matcher = SequenceMatcher(None, mine[:MAX_COMPARED], its[:MAX_COMPARED], autojunk=False)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            continue
        for i, j in zip(range(a, b), range(c, d), strict=False):
            one, other = _CONSTANT.match(mine[i]), _CONSTANT.match(its[j])
            if one and other and one[1] == other[1]:
                at = _at(ours[i].source or theirs[j].source)
                return (
                    f"The programs differ first in a constant ({one[1]}){at}: "
                    f"{_value(one)} on {labels[0]}, {_value(other)} on {labels[1]}."
                )
        blocks = ours[a:b], theirs[c:d]
        text = (blocks[0] or blocks[1])[0].text.removeprefix("ROOT ")
        firsts = [next((line for line in each if line.source), None) for each in blocks]
        known = [(line, who) for line, who in zip(firsts, labels, strict=True) if line is not None]
        if not known:
            return f"The programs differ first in `{middle(text, MAX_CHARS)}`."
        if len({line.source for line, _ in known}) > 1:
            each_at = (f"{_at(line.source)} on {who}{_code(line)}" for line, who in known)
            return f"The programs differ first{', and'.join(each_at)}.{TRACED}"
        only = ""
        if not all(blocks):
            has = middle(_without_names(text), MAX_CHARS)
            k = 0 if blocks[0] else 1
            verb = "has" if len(who[k]) == 1 else "have"
            only = f" Only {labels[k]} {verb} `{has}` there."
        return (
            f"The programs differ first{_at(known[0][0].source)}{_code(known[0][0])}.{only}{TRACED}"
        )
    return "The programs differ so late in a long program that it is not shown."


TRACED = " Numbers and branches that `jit` traces have to be the same on all processes."
"""What is said where the code of programs differs."""


def _code(line: model.ProgramLine) -> str:
    return f": `{middle(line.code, MAX_CHARS)}`" if line.code else ""


def _at(source: str) -> str:
    return f" at {_place(source)}" if source else ""


def text_of(found: model.ProgramDifference) -> str:
    """Returns the diff for people: a sentence, and the lines below it."""
    more = [f"… {found.left_out} lines more differ"] if found.left_out else []
    return "\n".join(f"  {line}" for line in (*found.lines, *more))


NOTHING_RAN = "None of it has run"
"""What is said of a dispatch that was stopped, after who was to do what."""

STILL_VALID = "so no process waits, and earlier results are valid"
"""What is said then, unless processes have run other dispatches before."""

MOST_ARGUMENTS = 2
"""So many arguments of other shapes are told one by one."""


def apart_text(at: Mapping[int, model.Dispatch], name: str) -> str:
    """Returns what is said where a computation has failed on some processes only.

    Args:
        at: Process index to what it was about to dispatch.
        name: What was stopped.
    """
    most = max(at.values(), key=lambda each: each.failures)
    failed = [i for i, each in sorted(at.items()) if each.failures == most.failures]
    return (
        f"{capitalized(processes_label(failed))} failed in {most.failed}, which others had also "
        f"begun: later collectives may pair with the wrong ones. So `{name}` was stopped. "
        f"{NOTHING_RAN}."
        + in_notebook(
            " `%spmd_recover` starts new processes with the variables, unless the end of the cell "
            "already has."
        )
    )


def refused(
    cell: int, at: Mapping[int, model.Dispatch], notes: Mapping[int, str]
) -> model.Divergence:
    """Returns where processes were about to part, of which nothing has run.

    Args:
        cell: The cell's number.
        at: Process index to what it was about to dispatch, of those that were stopped.
        notes: Process index to why it would dispatch no more: ``"raised ValueError at line 3"``.
    """
    first = min(at)
    everyone = {i for each in at.values() for i in each.processes}
    found = sides({i: at.get(i) for i in sorted(everyone | at.keys())}, notes)
    return model.Divergence(cell, at[first].number, _kind(at, everyone), found)


def _kind(at: Mapping[int, model.Dispatch], everyone: Collection[int]) -> model.DivergenceKind:
    here = list(at.values())
    if len({each.processes for each in here}) > 1:
        return "order"
    if len({each.fingerprint for each in here}) > 1:
        is_one_name = len({each.name for each in here}) == 1
        are_of_shapes = is_one_name and len({(each.arguments, each.results) for each in here}) > 1
        return "shapes" if are_of_shapes else "computation"
    differ = len({(each.inputs, each.replicas) for each in here}) > 1 or any(
        len(holders) == 1 for each in here for holders, _ in each.replicas
    )
    return "inputs" if differ and at.keys() >= set(everyone) else "missing"


def sides(
    at: Mapping[int, model.Dispatch | None], notes: Mapping[int, str]
) -> tuple[model.Side, ...]:
    """Returns who did what at one place, those who did most alike first.

    Args:
        at: Process index to its dispatch, or None.
        notes: Process index to why it made none.
    """
    groups: dict[tuple[object, str], list[int]] = {}
    for i, dispatch in sorted(at.items()):  # so that each process says the same
        if dispatch is None:
            key: tuple[object, str] = None, notes.get(i, "had finished")
        else:
            key = (dispatch.fingerprint, dispatch.inputs, dispatch.number), ""
        groups.setdefault(key, []).append(i)
    found = [model.Side(tuple(who), at[who[0]], note) for (_, note), who in groups.items()]
    return tuple(sorted(found, key=lambda side: (side.dispatch is None, -len(side.processes))))


MOST_PROGRAMS = 8
"""So many programs are compared."""


def programs_to_compare(found: Sequence[model.Side]) -> dict[model.Processes, int]:
    """Returns which programs tell how the sides differ: who has it, to fingerprint."""
    first: dict[int, model.Processes] = {}
    for side in found:
        if side.dispatch is not None:
            first.setdefault(side.dispatch.fingerprint, side.processes)
    some = list(first.items())[:MOST_PROGRAMS]
    return {who: fingerprint for fingerprint, who in some} if len(some) > 1 else {}


def disagreement(found: Sequence[model.Side], mine: model.Dispatch) -> str:
    """Returns the message of strict mode: nothing has run yet.

    Args:
        found: Who was about to do what.
        mine: What this process was about to do.
    """
    does = [f"{processes_label(side.processes)}: {_was_to(side, mine)}" for side in found]
    made = {side.dispatch.fingerprint for side in found if side.dispatch is not None}
    same = {f"{verb} to dispatch {_with_source(mine)}" for verb in ("was", "were")}
    if len(found) > 1 and all(_was_to(side, mine) in same for side in found):
        differs = "different inputs" if len(made) == 1 else "different programs"
        groups = " / ".join(ranks_label(side.processes) for side in found)
        does = [f"{differs} on processes {groups}, where all were to dispatch {_with_source(mine)}"]
    differ = differing_arguments(found)
    shapes = f"{differ}; " if differ else ""
    everyone = processes_label(mine.processes)
    which = f"dispatch {mine.number}" if mine.number else "a thread's dispatch"
    trust = STILL_VALID
    if any(side.dispatch is not None and _is_other_number(side.dispatch, mine) for side in found):
        trust = (
            "but after an interrupt or an error some processes ran dispatches that others did "
            "not: the results of those are invalid"
        )
    return (
        f"The processes do not agree on {which} over {everyone}: "
        f"{shapes}{'; '.join(does)}. {NOTHING_RAN}, {trust}."
    )


Row = tuple[str, str, str, str, str]
"""Processes, line, which time, what they were to dispatch or why nothing, and the line's code."""


def rows_of(parted: model.Divergence) -> list[Row]:
    """Returns who was about to do what as rows of a table; none where all rows say the same.

    Where it is known how programs or arguments differ that come from one line, there is one row.
    """
    found = parted.sides
    made = [side.dispatch for side in found if side.dispatch is not None]
    # What it is given and gives helps to tell apart what has one name.
    are_named = len({each.name for each in made}) == len(made)
    constants = dict(parted.program.constants) if parted.program is not None else {}
    alike: dict[tuple[str, str, str, str], list[int]] = {}
    for side in found if made else ():
        constant = constants.get(side.processes, "")
        row = _row(side, made[0], constant, parted.cell, are_named=are_named)
        alike.setdefault(row, []).extend(side.processes)
    is_known = parted.program or parted.differences or differing_arguments(found)
    if len(alike) < 2 and not is_known:
        return []
    return [(ranks_label(sorted(who)), *row) for row, who in alike.items()]


def _row(
    side: model.Side, mine: model.Dispatch, constant: str, cell: int, *, are_named: bool
) -> tuple[str, str, str, str]:
    its = side.dispatch
    if its is None:
        return "", "", f"nothing: {_why_none(side)}", ""
    line = "" if its.line is None else str(its.line)
    what = its.name if are_named else its.signature()
    if constant:
        what = f"{its.name} with constant {constant.replace(f' of {cell_label(cell)}', '')}"
    return line, its.which_time, f"{what}{_elsewhere(its, mine)}", its.source


def differing_arguments(found: Sequence[model.Side]) -> str:
    """Returns which arguments of one function have other shapes, or shardings; or nothing."""
    made = {side.processes: side.dispatch for side in found if side.dispatch is not None}
    given = {who: each.arguments.first for who, each in made.items() if each.arguments}
    counts = {each.arguments.count for each in made.values() if each.arguments}
    if len({each.name for each in made.values()}) != 1:
        return ""
    if len(counts) > 1:
        return _more_arguments(made)
    if not counts:
        return ""
    (count,) = counts
    names = dict(enumerate(next((each.names for each in made.values() if each.names), ())))
    told = []
    for k in range(min(map(len, given.values()))):
        has = _those_with({who: shapes[k] for who, shapes in given.items()})
        if len(has) < 2:
            has = _those_with({who: _with_spec(each, k) for who, each in made.items()})
        if len(has) > 1:
            those = [f"{shape} on {processes_label(sorted(who))}" for shape, who in has.items()]
            which = f"argument {k + 1} of {count}" if count > 1 else "the argument"
            which = f"argument `{names[k]}`" if names.get(k) else which
            told.append(f"{which} is {', '.join(those)}")
    if not told:
        return ""
    more = f"; and {len(told) - MOST_ARGUMENTS} more" if len(told) > MOST_ARGUMENTS else ""
    return f"{'; '.join(told[:MOST_ARGUMENTS])}{more}"


def _more_arguments(made: Mapping[model.Processes, model.Dispatch]) -> str:
    """Returns how many arguments a function is given where, and which are not given everywhere."""
    numbers = {who: each.arguments.count if each.arguments else 0 for who, each in made.items()}
    has = _those_with({who: str(number) for who, number in numbers.items()})
    names = [{*each.names} for each in made.values()]
    every = [each for those in names for each in sorted(those)] if all(names) else []
    only = [name for name in dict.fromkeys(every) if not all(name in those for those in names)]
    counts = ", ".join(f"{n} on {processes_label(sorted(who))}" for n, who in has.items())
    differ = f" ({', '.join(f'`{name}`' for name in only[:MOST_ARGUMENTS])})" if only else ""
    return f"the arguments are {counts}{differ}"


def _those_with(said: Mapping[model.Processes, str]) -> dict[str, list[int]]:
    has: dict[str, list[int]] = {}
    for who, text in said.items():
        has.setdefault(text, []).extend(who)
    return has


def _with_spec(made: model.Dispatch, k: int) -> str:
    known = made.arguments
    return f"{known.first[k]} {known.specs[k]}".rstrip() if known and known.specs else ""


def unequal_replicas_text(mine: model.Dispatch, differing: Sequence[Sequence[int]]) -> str:
    """Returns the message of strict mode where replicated arguments differ: nothing has run.

    Args:
        mine: What was to be dispatched.
        differing: Who has the same; one process alone if its own devices differ.
    """
    who = " ≠ ".join(processes_label(group) for group in differing)
    if len(differing) == 1:
        who = f"the devices of {who} hold different bytes"
    return (
        f"The processes were about to dispatch {mine} with replicated arguments whose bytes "
        f"differ: {who}. {NOTHING_RAN}. The notebook says which arguments, and what to type."
    )


def odd_ones(found: Sequence[model.Side]) -> str:
    """Returns which processes are the ones that differ, and how; or nothing if no side is.

    The fewest do; of sides of equal size, the one that dispatched nothing.
    """
    fewest = min((len(side.processes) for side in found), default=0)
    odd = [side for side in found if len(side.processes) == fewest]
    if len(odd) > 1:
        odd = [side for side in odd if side.dispatch is None]
    if len(odd) != 1 or len(found) < 2:
        return ""
    who, is_one = processes_label(odd[0].processes), len(odd[0].processes) == 1
    differs = "differs from the others" if is_one else "differ from the others"
    return f"{who} {differs if odd[0].dispatch is not None else _why_none(odd[0])}"


def _why_none(side: model.Side) -> str:
    is_one = len(side.processes) == 1
    return side.note if is_one else re.sub(r"^was\b", "were", side.note)


def _was_to(side: model.Side, mine: model.Dispatch) -> str:
    its = side.dispatch
    if its is None:
        return _why_none(side)
    what = f"{'was' if len(side.processes) == 1 else 'were'} to dispatch {_with_source(its)}"
    return what + _elsewhere(its, mine)


def _elsewhere(its: model.Dispatch, mine: model.Dispatch) -> str:
    """Returns what is said of a dispatch over other processes, or of another number."""
    over = f", over {processes_label(its.processes)}" if its.processes != mine.processes else ""
    return f"{over}, as dispatch {its.number}" if _is_other_number(its, mine) else over


def _with_source(its: model.Dispatch) -> str:
    return f"{its} (`{its.source}`)" if its.source else str(its)


def _is_other_number(its: model.Dispatch, mine: model.Dispatch) -> bool:
    are_counted = bool(its.number and mine.number)  # a thread's are not
    return are_counted and its.processes == mine.processes and its.number != mine.number
