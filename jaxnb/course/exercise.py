"""An exercise that checks a student's answer on the processes of a group."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxnb.cells.card_error import odd_text
from jaxnb.cells.result import CellResult, raised
from jaxnb.cells.sinks import NoSink
from jaxnb.course.judging import Difference, differences, summary
from jaxnb.course.messages import Answer
from jaxnb.course.verdict import Verdict, Wrong, exercise_card, hints_card
from jaxnb.display.card import Card
from jaxnb.errors import CellTimeoutError, ProcessDiedError, UsageError
from jaxnb.labels import capitalized, one_line, processes_label
from jaxnb.model.compiled import CompiledReport, NotCompiled
from jaxnb.pictures.exchange import matrix
from jaxnb.recovery import hooks
from jaxnb.session import Session

MOST_CHARS = 400
"""So much is said of an error."""

CHECK = "__import__('jaxnb.course.process_check', fromlist=['answer']).answer"

UNEQUAL = "out_specs which require replication"
"""In JAX's error for a result that may differ where `out_specs` says that it does not."""

EVERYWHERE = (
    Wrong(
        "diverged",
        "All processes run the same line with the same shapes. Does the code branch on "
        "`process_index`, or loop a different number of times on each process?",
        raises=r"DivergenceError",
        uses="diverged",
    ),
    Wrong(
        "axis",
        "Collectives take the name of an axis of the mesh. Which name is the function given?",
        raises=r"unbound axis|assert set\(new_axes\)",
    ),
    Wrong(
        "unequal",
        "The result has to be equal on all devices, and JAX has to know that it is: of what "
        "`psum`, `pmean`, `pmax` and `pmin` give it does, of what `all_gather` gives it does not.",
        raises=UNEQUAL,
    ),
    Wrong(
        "tracer",
        "Within `jit` and `shard_map` values are not known yet: compute with `jnp`, not with "
        "`np`, `float` or `if`.",
        raises=r"Tracer\w*Error|ConcretizationTypeError",
    ),
)
"""Mistakes that any exercise may meet; an exercise's own come first."""

ENDLESS = Wrong("time", "Does a loop of yours ever end?")


@dataclass(eq=False, repr=False, kw_only=True)
class Exercise:
    """A task, and what checks an answer to it.

    A student defines a name in a ``%%spmd`` cell, and calls :meth:`check` in a plain one.

    Attributes:
        name: A short name, an identifier.
        task: What to do, in a sentence.
        start: The first lines of an answer: ``"def my_sum(x, axis):"``. The name that they define
            is the one that the student has to define.
        setup: Code for the processes that makes what the call needs: a mesh, arrays, a jitted
            function. It sees the student's names; what it binds is gone after the check.
        call: An expression whose value is the answer.
        want: The right answer: an array of NumPy's, or dicts, lists and tuples of arrays.
        tolerance: How far numbers may differ, relative and absolute.
        sharding: An expression for the sharding that the answer must have; any, if it is empty.
        own: Each process has the answer for itself, in place of one array over all.
        budget: Bytes that a device may send in one call, by the compiler's count.
        link: Bytes of them that it may send to any one device.
        forbidden: Collectives that the program may not have: ``("all-gather",)``.
        memory: Bytes of temporary memory that the program may need on a device.
        wrong: Mistakes that are often made.
        hints: General hints; a failed try gives one more.
        devices: How many devices it is made for.
        processes: How many processes they are to be of; None for any number.
        timeout: Seconds after which a check is interrupted.
        listed: The name that a notebook knows it by: ``"course.all_gather"``.
        tries: How many checks have failed.
        last: What the last check said.
        passed: A check has passed; it stays so.
    """

    name: str
    task: str
    start: str
    setup: str
    call: str
    want: Any
    tolerance: float = 1e-5
    sharding: str = ""
    own: bool = False
    budget: int | None = None
    link: int | None = None
    forbidden: Sequence[str] = ()
    memory: int | None = None
    wrong: Sequence[Wrong] = ()
    hints: Sequence[str] = ()
    devices: int = 8
    processes: int | None = None
    timeout: float = 30.0
    listed: str = ""
    tries: int = field(default=0, init=False)
    last: Verdict | None = field(default=None, init=False)
    passed: bool = field(default=False, init=False)

    @property
    def define(self) -> str:
        """The name that the student has to define."""
        found = re.search(r"^(?:def\s+|class\s+)?(\w+)\s*[(:=]", self.start, re.MULTILINE)
        return found[1] if found else ""

    @property
    def label(self) -> str:
        """What errors call the exercise's code."""
        return f"the check of {self.name}"

    def check(self, session: Session | None = None) -> Verdict:
        """Runs the student's answer on all processes, and says whether it is right.

        A wrong answer raises nothing, whatever it does: the group is ready for the next cell. If
        the answer has ended a process, or computes without end, new processes take over.

        Args:
            session: The group; by default the notebook's.

        Raises:
            UsageError: There is no group, or it has another number of devices; or the exercise's
                own code is wrong.
            SessionBrokenError: A process of the group had died before.
        """
        session = session or _session_of_notebook()
        self._require_devices(session)
        began = time.monotonic()
        verdict = self._checked(session)
        self.last = self._ended(verdict, time.monotonic() - began)
        self.passed |= verdict.passed
        return self.last

    def hint(self) -> Card:
        """Returns the hint for the mistake of the last check, if it is a known one.

        Else as many of the general ones as there were failed tries, and one at least.
        """
        return hints_card(self)

    def __repr__(self) -> str:
        return f"<jaxnb.course.Exercise {self.name}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        card = exercise_card(self)
        return {"text/html": card.html, "text/plain": card.text}

    def _require_devices(self, session: Session) -> None:
        has = sum(len(process.devices) for process in session.processes)
        n = session.num_processes
        if has != self.devices or n != (self.processes or n):
            wanted = self.processes or min(4, self.devices)
            raise UsageError(
                f"The exercise {self.name} is for {self.devices} devices"
                f"{f' of {self.processes} processes' if self.processes else ''}, and the group has "
                f"{has} of {n}. Nothing was run. Type `%spmd_stop`, and then `%spmd_start "
                f"-n {wanted} --devices-per-process {self.devices // wanted}`."
            )

    def _ended(self, verdict: Verdict, seconds: float) -> Verdict:
        self.tries += verdict.is_try and not verdict.passed
        tried = self.hints[: max(1, self.tries)]
        hint = (
            verdict.wrong.hint if verdict.wrong else "" if verdict.passed else "".join(tried[-1:])
        )
        said = verdict.said
        if self._is_in_notebook and verdict.is_try and not verdict.passed:
            said += f"; the `{self.define}` in the notebook is another, and was not checked"
        return replace(
            verdict, said=said, name=self.name, listed=self.listed, seconds=seconds, hint=hint
        )

    @property
    def _is_in_notebook(self) -> bool:
        return hasattr(sys.modules["__main__"], self.define)

    def _checked(self, session: Session) -> Verdict:
        compiles = self.budget is not None or self.memory is not None or bool(self.forbidden)
        arguments = (self.label, self.setup, self.call, self.define, self.sharding, compiles)
        code, sink = f"{CHECK}{arguments!r}", Notices()
        was_broken = session.state == "broken"
        try:
            result = session.run(
                code, aside=self.label, timeout=self.timeout, raise_on_error=False, sink=sink
            )
        except ProcessDiedError as error:
            if was_broken:
                raise
            said = re.sub(r"(code that )?cell \[\d+\]( has run)?", self.label, str(error))
            return Verdict(said.partition(". ")[0], recovered=_recovered(session))
        except CellTimeoutError as error:
            said = f"The answer had not ended after {self.timeout:g} s, and was interrupted"
            return Verdict(said, wrong=ENDLESS, recovered=_recovered(session), result=error.result)
        ended = [each for each in result.per_process.values() if each.error is None]
        answers: dict[int, Answer] = {each.process_index: each.value for each in ended}
        if missing := [i for i, answer in answers.items() if answer.is_missing]:
            return self._missing(missing, len(result.per_process))
        if mistakes := [answer.mistake for answer in answers.values() if answer.mistake]:
            raise UsageError(
                f"The exercise {self.name} is wrong, not the answer: {mistakes[0]}. Nothing was "
                "checked. Correct its `setup`, `call` or `sharding`."
            )
        verdict = self._raised(result) if result.errors else self._wrong_values(answers)
        if verdict is None:
            verdict = self._program(answers)
        printed = "\n".join([result.stdout + result.stderr, *sink.said]).strip()
        return replace(verdict, printed=printed)

    def _known(self, is_it: Callable[[Wrong], object]) -> Wrong | None:
        return next((wrong for wrong in (*self.wrong, *EVERYWHERE) if is_it(wrong)), None)

    def _missing(self, missing: Sequence[int], num_processes: int) -> Verdict:
        name = self.define
        if len(missing) < num_processes:
            lacks = "do not" if missing[1:] else "does not"
            who = capitalized(processes_label(missing))
            said = f"{who} {lacks} have `{name}`: define it on all processes"
        else:
            said = f"Define `{name}` in a `%%spmd` cell first"
            if self._is_in_notebook:
                said += "; the one in the notebook is not on the processes"
        return Verdict(said, wrong=Wrong("missing", f"Begin with\n{self.start}"), is_try=False)

    def _raised(self, result: CellResult) -> Verdict:
        causes = raised(result.errors)
        clauses = [f"{processes_label(who)} {what}" for what, who in causes.items()]
        said = one_line("; ".join(clauses).replace(" at line 1", ""), MOST_CHARS).rstrip(".")
        who = {process for processes in causes.values() for process in processes}
        text = "\n".join((said, *(result.errors[process].traceback for process in who)))
        known = self._known(lambda wrong: wrong.raises and re.search(wrong.raises, text))
        if UNEQUAL in text and "out_specs" in self.setup:  # of which the student knows nothing
            said = "for JAX, the result may differ between devices on which it has to be equal"
            return Verdict(capitalized(said), wrong=known)
        if all(result.errors[process].type_name == "DivergenceError" for process in who):
            said = ": ".join(filter(None, ["The processes diverged", odd_text(result)]))
        return Verdict(capitalized(said), wrong=known, result=result)

    def _wrong_values(self, answers: Mapping[int, Answer]) -> Verdict | None:
        def against(wanted: Any) -> list[Difference]:
            return differences(answers, wanted, self.tolerance, own=self.own)

        if found := against(self.want):
            known = self._known(lambda each: each.value is not None and not against(each.value))
            return Verdict(summary(found), wrong=known, differences=tuple(found))
        leaves = [leaf for answer in answers.values() for leaf in answer.leaves.values()]
        elsewhere = [leaf.sharding or leaf.type_name for leaf in leaves if not leaf.is_laid_out]
        if elsewhere:
            return self._exceeds(f"the answer is laid out as {elsewhere[0]}", "sharding")
        return None

    def _program(self, answers: Mapping[int, Answer]) -> Verdict:
        reports = [answer.report for answer in answers.values()]
        programs = [each for each in reports if isinstance(each, CompiledReport)]
        for report in reports:
            if isinstance(report, NotCompiled):
                said = one_line(f"the call does not compile: {report.error}", MOST_CHARS)
                return self._exceeds(said, "compile")
        if len({each.fingerprint for each in programs}) > 1:
            return self._exceeds("the processes compile different programs", "diverged")
        said = f"right on {len(answers)} processes"
        if not programs:
            return Verdict(said, passed=True)
        program = programs[0]
        for each in program.collectives:
            if each.kind in self.forbidden:
                at = f" at {each.source}" if each.source else ""
                article = "an" if each.kind.startswith("a") else "a"
                return self._exceeds(f"the program has {article} {each.kind}{at}", each.kind)
        sent = sum(total.bytes for total in program.totals)
        if self.budget is not None and sent > self.budget:
            said = f"each device sends {sent} B, and {self.budget} B are enough"
            return self._exceeds(said, "bytes")
        most = self.link
        if most is not None and (carried := int(matrix(program).max(initial=0))) > most:
            said = f"a device sends {carried} B to one other, and {most} B are enough"
            return self._exceeds(said, "link")
        temporary = program.memory.temporary_bytes if program.memory else 0
        if self.memory is not None and temporary > self.memory:
            said = f"it needs {temporary} B of temporary memory, and {self.memory} B are enough"
            return self._exceeds(said, "memory")
        return Verdict(said, passed=True, sent=sent, budget=self.budget)

    def _exceeds(self, said: str, what: str) -> Verdict:
        known = self._known(lambda wrong: wrong.uses == what)
        return Verdict(f"The values are right, but {said}", wrong=known)


class Notices(NoSink):
    """Keeps what jaxnb says beside an answer's output."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def notice(self, text: str) -> None:
        """Keeps a sentence."""
        self.said.append(text)


def _recovered(session: Session) -> str:
    """Has new processes take over where the answer left the group unusable; says so."""
    return str(session.recover()) if session.state == "broken" else ""


def _session_of_notebook() -> Session:
    """Returns the notebook's session.

    Raises:
        UsageError: There is none.
    """
    from jaxnb.magics.spmd import SESSION_NAME  # IPython, which a script does without

    found = getattr(sys.modules["__main__"], SESSION_NAME, None)
    if hooks.is_in_process():
        raise UsageError(
            "This cell runs on the processes. Nothing was checked. Check in a plain cell (one that "
            "begins with `%%local`, if `%spmd_auto` is on): that asks all processes."
        )
    if not isinstance(found, Session):
        raise UsageError(
            "There is no group of processes here. Nothing was checked. In a notebook, type "
            "`%spmd_start -n 4 --devices-per-process 2` first; in a script, pass the session: "
            "`check(session)`."
        )
    return found
