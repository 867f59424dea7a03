"""What a check says, and its card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxnb.cells.card_error import error_card
from jaxnb.cells.result import CellResult
from jaxnb.course.judging import Difference
from jaxnb.display.blocks import Block, Cell, Column, Either, Facts, Fold, Note, Pre, Row, Table
from jaxnb.display.card import Card, card_of, stacked
from jaxnb.labels import format_bytes, format_seconds, plural, ranks_label

if TYPE_CHECKING:
    from jaxnb.course.exercise import Exercise

WORDS = "`%spmd_help glossary` explains the words, `%spmd_help shard` one of them."

MOST_DIFFERENCES = 3
MOST_PRINTED_LINES, MOST_PRINTED_CHARS = 10, 200


@dataclass(frozen=True, slots=True)
class Wrong:
    """A mistake that is often made, and the hint that it gets in place of the general ones.

    Attributes:
        name: What the tests call it.
        hint: What to think of.
        value: The answer that it gives, as NumPy's: values are compared with it.
        raises: A regular expression that is found in the error that it raises.
        uses: A collective that its program has and the exercise forbids (``"all-gather"``), or
            which other limit it exceeds (``"bytes"``, ``"link"``, ``"memory"``, ``"sharding"``),
            while its values are right.
    """

    name: str
    hint: str
    value: Any = None
    raises: str = ""
    uses: str = ""


@dataclass(frozen=True, repr=False)
class Verdict:
    """Whether an answer is right; a notebook shows it as a card.

    True if it has passed: graders write ``assert course.all_gather.check()``.

    Attributes:
        said: What was found, in a sentence.
        passed: The answer is right.
        name: The exercise's name.
        hint: What to think of; empty if it has passed.
        wrong: The mistake that it is, if that is a known one.
        differences: Where values differ.
        sent: Bytes that a device sends in one call; None if that was not looked at.
        budget: Bytes that it may send; None if there is no limit.
        seconds: How long the check took.
        printed: What the answer printed.
        recovered: What became of the group, if processes had to be replaced.
        result: What the processes raised, if they did.
        is_try: It counts as a try, if it has not passed.
        listed: The name that a notebook knows the exercise by.
    """

    said: str
    passed: bool = False
    name: str = ""
    hint: str = ""
    wrong: Wrong | None = None
    differences: tuple[Difference, ...] = ()
    sent: int | None = None
    budget: int | None = None
    seconds: float = 0.0
    printed: str = ""
    recovered: str = ""
    result: CellResult | None = None
    is_try: bool = True
    listed: str = ""

    def __bool__(self) -> bool:
        return self.passed

    @property
    def known(self) -> str:
        """The name of the known mistake that it is; empty if it is none."""
        return self.wrong.name if self.wrong else ""

    @property
    def card(self) -> Card:
        """The verdict as a card."""
        return stacked([self._card(), *([error_card(self.result)] if self.result else [])])

    def _card(self) -> Card:
        if self.passed:
            facts = [self.said]
            if self.sent is not None:
                of = f" of {format_bytes(self.budget)}" if self.budget is not None else ""
                facts.append(f"each device sends {format_bytes(self.sent)}{of}")
            facts.append(format_seconds(self.seconds))
            return card_of(Facts(facts, f"✓ {self.name}"), *self._printed())
        blocks: list[Block] = [Note(f"✗ {self.name}: {self.said}.", "bold")]
        if self.differences:
            blocks.append(_table(self.differences))
        if self.recovered:
            blocks.append(Note(self.recovered, "dim"))
        if self.hint:
            folded = Fold(Facts(["Hint"]), [_hint_block(self.hint)])
            blocks.append(Either([folded], f"{_to_type(self.listed, 'hint')} for a hint."))
        return card_of(*blocks, *self._printed(), tone="warn")

    def _printed(self) -> list[Block]:
        lines = self.printed.splitlines()
        if not lines:
            return []
        shown = "\n".join(_cut(line) for line in lines[:MOST_PRINTED_LINES])
        more = len(lines) - MOST_PRINTED_LINES
        rest = f"\n… {plural(more, 'more line')}" if more > 0 else ""
        return [Fold(Facts(["Output"]), [Pre(shown + rest)])]

    def __repr__(self) -> str:
        return self.card.text

    __str__ = __repr__

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        card = self.card
        return {"text/html": card.html, "text/plain": card.text}


def _cut(line: str) -> str:
    return line if len(line) <= MOST_PRINTED_CHARS else f"{line[:MOST_PRINTED_CHARS]}…"


def _hint_block(hint: str) -> Block:
    return Pre(hint) if "\n" in hint else Note(hint)


def _table(differences: Sequence[Difference]) -> Table:
    who: dict[tuple[str, ...], list[int]] = {}
    for each in differences:
        if each.what == differences[0].what:
            device = "" if each.device is None else str(each.device)
            who.setdefault((device, each.where, each.has, each.wanted), []).append(each.process)
    columns = [
        Column("process", ">"),
        Column("device", ">", optional=True),
        Column("where in the whole", optional=True),
        Column("has", wrap=True),
        Column("wanted", optional=True, wrap=True),
    ]
    rows: list[Row] = [
        [ranks_label(processes), device, where, Cell(has, "pre"), Cell(wanted, "pre")]
        for (device, where, has, wanted), processes in who.items()
    ]
    left_out = len(rows) - MOST_DIFFERENCES
    return Table(columns, rows[:MOST_DIFFERENCES], more=(left_out, "difference"))


def _to_type(listed: str, method: str) -> str:
    """Says how an exercise is asked; the variable that a teacher's own is in is not known."""
    return f"Type `{listed}.{method}()`" if listed else f"Call its method `{method}()`"


def exercise_card(exercise: Exercise) -> Card:
    """The card of an exercise: what to do, how to begin, and what it may cost."""
    limits = []
    if exercise.budget is not None:
        limits.append(f"each device sends at most {format_bytes(exercise.budget)}")
    if exercise.link is not None:
        limits.append(f"at most {format_bytes(exercise.link)} of it to any one")
    if exercise.forbidden:
        limits.append(f"without {', '.join(exercise.forbidden)}")
    if exercise.memory is not None:
        limits.append(f"at most {format_bytes(exercise.memory)} of temporary memory")
    if exercise.hints:
        limits.append(plural(len(exercise.hints), "hint"))
    mark = "✓ " if exercise.passed else ""
    return card_of(
        Note(f"{mark}{exercise.name}", "bold"),
        Note(exercise.task),
        Pre(exercise.start),
        Facts(limits, look="dim"),
        Note(
            f"Define it in a `%%spmd` cell. {_to_type(exercise.listed, 'check')} in a plain one. "
            f"{WORDS}",
            "dim",
        ),
    )


def hints_card(exercise: Exercise) -> Card:
    """The card of an exercise's hints so far."""
    if exercise.last is not None and exercise.last.wrong:
        return card_of(_hint_block(exercise.last.hint))
    hints = exercise.hints[: max(1, exercise.tries)]
    blocks: list[Block] = [_hint_block(hint) for hint in hints]
    if left := len(exercise.hints) - len(hints):
        blocks.append(Note(f"{plural(left, 'more hint')} after further tries.", "dim"))
    return card_of(*(blocks or [Note("There are no hints.")]))


def list_card(groups: Sequence[tuple[str, Sequence[Exercise]]]) -> Card:
    """The card of all exercises, by topic, with ✓ for those passed; one topic is open."""
    folds: list[Block] = []
    is_first = True
    for topic, exercises in groups:
        passed = sum(each.passed for each in exercises)
        rows: list[Row] = [
            ["✓" if each.passed else "", Cell(each.listed, "code"), each.task.replace("`", "")]
            for each in exercises
        ]
        table = Table([Column(), Column("exercise"), Column("task", wrap=True)], rows)
        opened = is_first and passed < len(exercises)
        is_first = is_first and not opened
        folds.append(Fold(Facts([f"{passed} of {len(rows)} passed"], topic), [table], opened))
    return card_of(*folds, Note(WORDS, "dim"))
