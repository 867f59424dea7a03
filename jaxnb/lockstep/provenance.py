"""Pure: origins of processes' arrays, to where these are not parts of one array, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from jaxnb.labels import APART, capitalized, paths_label, processes_label, ranks_label
from jaxnb.model.dispatches import Argument, Difference, Made
from jaxnb.model.scripts import cell_label, in_notebook

_MENDS = (
    " Bind it to one array, in one cell on all processes, from the start or a checkpoint, or push "
    "a value."
)

SAME_SHAPE = (
    "All processes have to give it the same global shape, and as much data as their devices hold "
    "of it."
)
"""What is said of an array whose shape differs between processes."""

OF_PARTS = "; from shards of: "
"""Separates what made an array from the origin of the array whose shards it was made from."""

Sides = tuple[tuple[tuple[int, ...], Argument | None], ...]

MOST_TOLD = 4
"""So many arguments or names are told one by one; of the others, how many there are."""


def differing_arguments(given: Mapping[int, Sequence[Argument]]) -> tuple[Difference, ...]:
    """Returns at which arguments of one dispatch processes passed parts of different arrays.

    Args:
        given: Process index to what it passed; of processes whose arguments are known.
    """
    by_place = {i: {each.position: each for each in those} for i, those in given.items()}
    return tuple(
        Difference(_argument_label(place, found), found)
        for place in sorted({place for each in by_place.values() for place in each})
        if len(found := _sides({i: each.get(place) for i, each in by_place.items()})) > 1
    )


def _argument_label(place: int, sides: Sides) -> str:
    name = next((each.parameter for _, each in sides if each and each.parameter), "")
    return f"argument `{name}`" if name else f"argument {place + 1}"


def differ_in_number_only(given: Mapping[int, Sequence[Argument]], who: Sequence[int]) -> bool:
    """Whether processes passed parts of the same arrays to one dispatch, numbered differently.

    A process that has made one array more numbers those after it differently. What is not
    remembered any more is taken to differ.

    Args:
        given: Process index to the global arrays that it passed.
        who: The processes that have to be among them.
    """
    if set(given) != set(who) or not all(given.values()):
        return False
    return len({tuple(e.number for e in those) for those in given.values()}) > 1 and (
        not differing_arguments(given)
    )


def differing_names(bound: Mapping[int, Mapping[str, Argument]]) -> tuple[Difference, ...]:
    """Returns which names are bound to parts of different arrays, of those that have them.

    Args:
        bound: Process index to name to array.
    """
    names = dict.fromkeys(name for each in bound.values() for name in each)
    return tuple(
        Difference(name, found)
        for name in names
        if len(found := _sides({i: e[name] for i, e in bound.items() if name in e})) > 1
        and any(_meet(one, other) for (_, one), (_, other) in combinations(found, 2))
    )


def _meet(one: Argument | None, other: Argument | None) -> bool:
    """Whether arrays span a process in common: else processes have one each on purpose."""
    both = [set(each.processes) for each in (one, other) if each and each.processes]
    return len(both) < 2 or bool(set.intersection(*both))


def are_one(mine: Argument | None, its: Argument | None) -> bool:
    """Whether two processes' arrays are parts of one array.

    One process may have made more arrays of that type than the other, elsewhere in the code, or
    another branch of the code may have made it: either is enough. What is of unknown origin may be
    part of any.
    """
    if mine is None or its is None:
        return mine is its
    if "unknown" in (mine.made.kind, its.made.kind):
        return True
    return mine.number == its.number or (mine.made.place == its.made.place != 0)


def _sides(at: Mapping[int, Argument | None]) -> Sides:
    groups: list[list[int]] = []
    for i, each in sorted(at.items()):
        known = next((who for who in groups if are_one(at[who[0]], each)), None)
        if known is None:
            groups.append([i])
        else:
            known.append(i)
    return tuple((tuple(who), at[who[0]]) for who in groups)


def arguments_text(differences: Sequence[Difference], others: int = 0) -> str:
    """Returns which processes passed what: sentences; empty for no differences."""
    told = [f"{capitalized(each.place)}: {_passed(each)}." for each in differences[:MOST_TOLD]]
    more = len(differences) - len(told) + others
    if more:
        told.append(f"{more} more argument{'s' if more > 1 else ''} differ.")
    return " ".join(told)


def names_text(differences: Sequence[Difference]) -> str:
    """Returns who holds what under the same names: a sentence for all that differ alike."""
    groups = _alike(differences)
    told = [
        f"{paths_label(each.place for each in alike)}: {_held_alike(alike)}."
        for alike in groups[:MOST_TOLD]
    ]
    more = [each.place for alike in groups[MOST_TOLD:] for each in alike]
    return " ".join([*told, *([f"Also {paths_label(more)}."] if more else [])])


def _alike(differences: Sequence[Difference]) -> list[list[Difference]]:
    groups: dict[tuple[object, ...], list[Difference]] = {}
    for each in differences:
        key = tuple((who, step_of(side) or (side and side.number)) for who, side in each.sides)
        groups.setdefault(key, []).append(each)
    return [*groups.values()]


def names_rows(cell: int, differences: Sequence[Difference]) -> list[tuple[str, str, str]]:
    """Returns names, processes and what these hold under them, in short, as rows of a table."""
    rows: list[tuple[str, str, str]] = []
    for alike in _alike(differences):
        names = paths_label(each.place for each in alike).replace("`", "")
        for k, (who, each) in enumerate(alike[0].sides):
            what = source_text(each)
            if each is not None and _other_shapes(alike[0]):
                what = ", ".join(filter(None, [each.type, what.partition(",")[0]]))
            short = what.replace(f" of {cell_label(cell)}", "").replace(_COUNTED, "")
            rows.append(("" if k else names, ranks_label(who), short))
    return rows


_COUNTED = " of its shape and dtype there"


def step_of(argument: Argument | None) -> tuple[object, ...]:
    """Returns which dispatch an array is a result of; empty for other arrays."""
    if argument is None or argument.made.kind != "dispatch":
        return ()
    made = argument.made
    return made.name, made.cell, made.number, made.line


def pull_text(name: str, differences: Sequence[Difference]) -> str:
    """Returns what a pull says of parts that come from different arrays; empty for none."""
    if not differences:
        return ""
    return (
        f"`{name}` mixes shards of different arrays, and the pull has put them together: "
        f"{names_text(differences)}{in_notebook(_MENDS)}"
    )


def apart_text(held: Mapping[int, Argument | None]) -> str:
    """Returns who holds a part of which array, where one is made of parts of several; or nothing.

    Args:
        held: Process index to the array as it holds it; None where that is not known.
    """
    found = _sides({i: each for i, each in held.items() if each is not None})
    if len(found) < 2:
        return ""
    return f"{APART}: {_held(Difference('', found))}"


def made_in(cell: int, differences: Sequence[Difference]) -> tuple[Difference, ...]:
    """Returns those of which some process has made its array in a cell."""
    return tuple(
        each
        for each in differences
        if any(side is not None and side.made.cell == cell for _, side in each.sides)
    )


def unequal_names_text(
    cell: int, differences: Sequence[Difference], *, has_ended_alike: bool = False
) -> str:
    """Returns what is said after a cell of names that hold parts of different arrays.

    Args:
        cell: The cell's number.
        differences: The names.
        has_ended_alike: Whether it ended on all processes without an error or an interrupt.
    """
    heading = unequal_names_heading(cell, differences, has_ended_alike=has_ended_alike)
    return f"{heading} {names_text(differences)}{how_to_go_on(differences)}"


def unequal_names_heading(
    cell: int, differences: Sequence[Difference], *, has_ended_alike: bool
) -> str:
    """Returns the first sentence of :func:`unequal_names_text`."""
    how = "stopped at different steps: these variables mix shards of different arrays"
    tell_apart = (_other_shapes, _other_data, _are_of_other_lines)
    if has_ended_alike or any(tell(each) for each in differences for tell in tell_apart):
        how = "bound a name to different arrays on different processes"
    return f"{cell_label(cell)} {how}."


def how_to_go_on(differences: Sequence[Difference]) -> str:
    """Returns which step all have completed, where that is known, and what to do after a cell."""
    types = ({each.type for _, each in diff.sides if each} for diff in differences)
    if all(map(_other_shapes, differences)) and all(len(each) > 1 for each in types):
        return f" {SAME_SHAPE}"
    return f"{_last_common_step(differences)}{in_notebook(_MENDS)}"


def _last_common_step(differences: Sequence[Difference]) -> str:
    made = [side.made for each in differences for _, side in each.sides if side is not None]
    if len({(each.kind, each.name, each.cell) for each in made}) != 1 or made[0].kind != "dispatch":
        return ""
    return f" Last step completed everywhere: dispatch {min(each.number for each in made)}."


def _passed(difference: Difference) -> str:
    if data := _other_data(difference):
        return data
    if others := _other_shapes(difference):
        name = next((each.name for _, each in difference.sides if each and each.name), "")
        return f"{f'`{name}` ' if name else ''}{others}"
    said = (f"{processes_label(who)} passed {_what(each)}" for who, each in difference.sides)
    return ", ".join(said) + _once_more(difference)


def _other_data(difference: Difference) -> str:
    """Returns who passed other data, if nothing else tells those apart; else nothing."""
    told = {(each.made.kind, each.made.name) if each else None for _, each in difference.sides}
    kind, name = (len(told) == 1 and told.pop()) or ("", "")
    if kind != "host":
        return ""
    labels = " / ".join(ranks_label(who) for who, _ in difference.sides)
    return f"processes {labels} passed {name} with different data"


def _other_shapes(difference: Difference) -> str:
    """Returns what arrays are that one line has made on all, of other shapes, say; else nothing.

    They are counted by shape, dtype and processes: what else tells them apart is in the words.
    """
    made = {each and (each.made.kind, origin_text(each.made, 0)) for _, each in difference.sides}
    kind, text = (len(made) == 1 and made.pop()) or ("", "")
    if kind != "created":
        return ""
    types = [(each.type if each else "", who) for who, each in difference.sides]
    labels = " / ".join(processes_label(who) for _, who in types)
    how = f"with other shapes, dtypes or processes on {labels}"
    if all(each for each, _ in types) and len(dict(types)) == len(types):
        how = ", ".join(f"{each} on {processes_label(who)}" for each, who in types)
    return f"{text.partition(',')[0]}, {how}"


def _are_of_other_lines(difference: Difference) -> bool:
    """Whether calls at different lines of the code have made the arrays."""
    made = {(each.made.kind, each.made.line) for _, each in difference.sides if each is not None}
    return len(made) > 1 and {kind for kind, _ in made} == {"created"}


def _held(difference: Difference) -> str:
    if others := _other_shapes(difference):
        return others
    said = (
        f"on {processes_label(who)} {origin_text(each.made, each.number) if each else 'nothing'}"
        for who, each in difference.sides
    )
    return ", ".join(said) + _once_more(difference)


def _once_more(difference: Difference) -> str:
    """Returns why arrays made at one line of a cell are not one, if that alone sets them apart."""
    made = [each.made for _, each in difference.sides if each is not None]
    names = {each.name for _, each in difference.sides if each is not None}
    lines = {(each.kind, each.name, each.cell, each.line) for each in made}
    if len(made) < len(difference.sides) or len(names) > 1 or len(lines) > 1:
        return ""
    if made[0].kind != "created":
        return ""
    return "; if a process made one more there (a retry, say), make as many on all"


def _held_alike(alike: Sequence[Difference]) -> str:
    """Returns who holds what, of names that differ alike: of which dispatches, for several."""
    if len(alike) == 1:
        return _held(alike[0])
    said = (f"on {processes_label(who)} {source_text(each)}" for who, each in alike[0].sides)
    return ", ".join(said)


def source_text(argument: Argument | None) -> str:
    """Returns what arrays come from: ``"results of jit(step), dispatch 7 of cell [4], line 2"``."""
    if argument is None:
        return "nothing"
    text = origin_text(argument.made, argument.made.base)
    return f"results{text.removeprefix('result')}" if text.startswith("result ") else text


def _what(argument: Argument | None) -> str:
    if argument is None:
        return "no global array"
    if argument.made.kind == "host":
        return argument.made.name
    name = f"`{argument.name}`" if argument.name else "an array that no name holds now"
    return f"{name} ({origin_text(argument.made, argument.number)})"


def origin_text(made: Made, number: int) -> str:
    """Returns where an array came from: ``"result of jit(step), dispatch 7 of cell [4], line 2"``.

    Args:
        made: What made it.
        number: The array's own number.
    """
    line = f", line {made.line}" if made.line is not None else ""
    cell = f" of {cell_label(made.cell)}" if made.cell else ""
    if made.kind == "dispatch":
        place = number - made.base
        result = "result" if place == 0 else f"result {place}"
        result = "a ref's array after" if place < 0 else f"{result} of"
        count = f"dispatch {made.number}" if made.number else "in a thread"
        return f"{result} {made.name}, {count}{cell}{line}"
    if made.kind == "created":
        where = f"made at line {made.line}{cell}" if made.line is not None else f"made{cell or ''}"
        name, of_parts, whole = made.name.partition(OF_PARTS)
        by = f" by {name}" if name else ""
        return f"{where}{by}, array {made.number}{_COUNTED}{of_parts}{whole}"
    return "made without a record"
