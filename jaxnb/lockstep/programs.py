"""Pure: two programs to a short diff of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher, unified_diff

from jaxnb.labels import processes_label
from jaxnb.model.dispatches import ProgramDifference, ProgramLine
from jaxnb.model.scripts import cell_label

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
    programs: Mapping[tuple[int, ...], Sequence[ProgramLine]],
) -> ProgramDifference | None:
    """Returns how the first two programs differ; None if nothing is known of one.

    Args:
        programs: Who dispatched it, to a program; in the order in which they are told.
    """
    known = [(who, lines) for who, lines in programs.items() if lines]
    if len(known) < 2:
        return None
    (first, second), programs_known = zip(*known[:2], strict=True)
    # Names and layouts of all that follows a difference differ too: first without them.
    for simple, has_all in ((_without_names, False), (_without_layouts, False), (str, True)):
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
    low, high = _middle(mine, its)
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
    return ProgramDifference(who, tuple(lines[:MAX_LINES]), left_out, summary)


_PLUMBING = re.compile(r"^(?:ROOT )?(?:\(.*\)|\S+) (?:parameter|tuple|get-tuple-element)\(")
"""What says how values are handed on. It moves about, and differs where something else does."""


def _without_layouts(text: str) -> str:
    return _LAYOUT.sub("", text)


def _without_names(text: str) -> str:
    return _NAME.sub("", _without_layouts(text))


def _shown(text: str, line: ProgramLine) -> str:
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


def _middle(mine: Sequence[str], its: Sequence[str]) -> tuple[int, int]:
    """Returns how many lines at the start, and how many at the end, are the same."""
    shorter = min(len(mine), len(its))
    start = next((i for i in range(shorter) if mine[i] != its[i]), shorter)
    left = shorter - start
    return start, next((i for i in range(left) if mine[-1 - i] != its[-1 - i]), left)


def _summary(
    mine: Sequence[str],
    its: Sequence[str],
    ours: Sequence[ProgramLine],
    theirs: Sequence[ProgramLine],
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
                    f"They differ in a constant ({one[1]}){at}: {one[2]} on {labels[0]}, "
                    f"{other[2]} on {labels[1]}."
                )
        sources = [*ours[a:b], *theirs[c:d], *ours[b:], *theirs[d:]]
        at = _at(next((line.source for line in sources if line.source), ""))
        left = mine[a].removeprefix("ROOT ") if a < b else ""
        right = its[c].removeprefix("ROOT ") if c < d else ""
        word = next((w for w in _FACTS if left.startswith(w) or right.startswith(w)), "")
        if word:
            return f"They differ in {_FACTS[word]}: see below."
        names = [_operation(each) for each in (left, right)]
        if names[0] == names[1]:
            return f"They differ first{at}, in operands or attributes of {names[0]}."
        return f"They differ first{at}: {names[0]} on {labels[0]}, {names[1]} on {labels[1]}."
    return "They differ so late in a long program that it is not shown."


_FACTS = {
    "devices (": "the order of the devices that they run on",
    "compiler_options (": "the compiler_options that they were compiled with",
    "input_output_alias=": "which arguments are donated",
    "large constant": "a large constant that they close over",
    "entry_computation_layout=": "the shapes, layouts or memory of their arguments and results",
}


def _at(source: str) -> str:
    return f" at {_place(source)}" if source else ""


def _operation(text: str) -> str:
    if not text:
        return "nothing"
    found = re.search(r" ([a-z][\w-]*)\(", text)
    return f"`{found[1] if found else text.partition('=')[0]}`"


def text_of(found: ProgramDifference) -> str:
    """Returns the diff for people: a sentence, and the lines below it."""
    more = [f"… {found.left_out} lines more differ"] if found.left_out else []
    return "\n".join([*(f"  {line}" for line in found.lines), *(f"  {each}" for each in more)])
