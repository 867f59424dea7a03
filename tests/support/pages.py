"""What ``docs/conf.py`` puts into pages: what the tests know of faults, inequality and programs."""

from __future__ import annotations

import re
from collections.abc import Iterable

from faults.table.rows import NO_ROW, WHEN, Row
from faults.table.rows import ROWS as FAULTS
from faults.unequal.rows import ROWS as UNEQUAL
from support.programs import COMMON, PROGRAMS

ABOUT = {
    "starting": "while the processes join each other",
    "idle": "between two cells; a thread that an earlier cell left, or a signal from outside",
    "Python": "in a cell; but for deaths, the other processes come to its end",
    "collective": "in a cell; the other processes wait in a collective",
    "pull": "one process runs code of its user's to give a value (`__reduce__`)",
    "push": "one process runs code of its user's to make a value",
    "re-forming": "another process has died and is being replaced",
}


def faults_table() -> str:
    """Returns the tables of faults, one for each *when*, and what has no row."""
    parts = []
    for when in WHEN:
        lines = _joined((_cells(row), row.which) for row in FAULTS if row.when == when)
        head = ("how", "raised", "named", "afterwards", "which")
        parts.append(f"### {when[0].upper()}{when[1:]}\n\n{ABOUT[when]}\n\n{_table(head, lines)}")
    reasons = _joined(((when, why), how) for (when, how), why in NO_ROW.items())
    return "\n\n".join([*parts, "### What has no row", _table(("when", "why", "how"), reasons)])


def unequal_table() -> str:
    """Returns the table of what is unequal; what is said as the pattern that it has to match."""
    head = ("where", "what is unequal", "it is", "what is said")
    lines = [
        (row.where, row.what, "refused" if row.refused else "reported", _code(_plain(row.said)))
        for row in UNEQUAL
    ]
    return _table(head, lines)


def programs_text() -> str:
    """Returns the six programs, each with what it sends by hand."""
    parts = [f"All of them begin with\n\n```python\n{COMMON.strip()}\n```"]
    for name, program in PROGRAMS.items():
        code = f"```python\n{program.setup.strip()}\n```"
        call = f"```python\n%spmd_collectives {program.call}\n```"
        lines = [
            (row.kind, f"{', '.join(row.axes)}, {row.group_size}",
             f"{row.sends} = {row.bytes:,}".replace(",", " "), str(row.count), row.why)
            for row in program.rows
        ]  # fmt: skip
        head = ("collective", "over", "bytes that each device sends", "times", "of")
        lesson = f"The notebook {{doc}}`course/{program.notebook}` teaches it."
        title = f"### {name[0].upper()}{name[1:]}"
        parts += [title, code, call, _table(head, lines), lesson]
    return "\n\n".join(parts)


def _cells(row: Row) -> tuple[str, ...]:
    blanks = dict.fromkeys(("pid", "cell", "fault", "wait", "x", "long"), "…")
    others = dict.fromkeys(("others", "ranks"), "the others") | {"Others": "The others"}
    others |= {"parts": "the others / i", "other": "k", "mine": "`mine` (differs by process)"}
    words = blanks | others | {"which": "i", "count": "N", "have": "have"}
    names = "<br>".join(_code(name.format(**words)) for name in row.names) or "–"
    return row.how, row.what_is_raised, names, row.afterwards


def _plain(pattern: str) -> str:
    """Returns a regular expression as a person reads it, with dots for what may be anything."""
    text = re.sub(r"\(\?s\)|\\[dSw]\+|\[\\d\]|\.\*|\\d\*", " … ", pattern)
    text = re.sub(r"\\(.)", r"\1", re.sub(r"\((\w+)\)\?|([\w,])\?", r"\1\2", text))
    return re.sub(r"([\[(]) … ([\])])", r"\1…\2", " ".join(text.split())).removeprefix("… ")


def _joined(cells: Iterable[tuple[tuple[str, ...], str]]) -> list[tuple[str, ...]]:
    """Returns the cells of lines, those that are the same but for the last cell in one."""
    found: dict[tuple[str, ...], list[str]] = {}
    for same, last in cells:
        found.setdefault(same, []).append(last)
    return [(*same, ", ".join(last)) for same, last in found.items()]


def _table(head: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ("---",) * len(head), *lines])


def _code(text: str) -> str:
    text = text.replace("|", "\\|")
    return f"`` {text} ``" if "`" in text else f"`{text}`"
