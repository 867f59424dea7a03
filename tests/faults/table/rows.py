"""The table of faults: when × how × which process, to what the user is told and has to type.

What spans it, what has no meaning, the rows, and which of them ``make test`` plays.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

SHAPE = "JAXNB_TABLE_SHAPE"

PROCESSES, DEVICES = map(int, os.environ.get(SHAPE, "3x1").split("x"))
"""The group: its processes, and the devices of each."""

QUEUED = 10 if SHAPE in os.environ else 0
"""In groups of another shape others have dispatched so many before the one that they wait in."""

WHEN = ("starting", "idle", "Python", "collective", "pull", "push", "re-forming")

ENDS = ("raise", "sys.exit", "os._exit", "SIGSEGV", "SIGKILL", "SIGSTOP", "loop")
"""What one process does, or what is done to it."""

AGREED = (
    "collective", "device_put", "allgather", "first compile", "sync_global_devices", "barrier",
)  # fmt: skip
"""Waits that begin once all processes have come to them."""

WAITS_IN_JAX = (*AGREED, "key")
WAITS_IN_PYTHON = ("subprocess", "lock", "swallow", "swallow all")
DEADLOCKS = WAITS_IN_JAX + WAITS_IN_PYTHON
"""Waits that never end. ``swallow`` is a busy loop in Python that swallows KeyboardInterrupt,
``swallow all`` one in another that both swallow all exceptions."""

COMPUTATIONS = ("order", "constant", "one more", "one fewer")
VALUES = ("shape", "some ranks", "scalars", "NumPy arrays", "keys", "replicas")
MISMATCHES = COMPUTATIONS + VALUES
"""What the processes do, or have, that is not the same."""

HOW = (
    *ENDS,
    *(f"deadlock: {kind}" for kind in DEADLOCKS),
    *(f"mismatch: {kind}" for kind in MISMATCHES),
)

WHICH = ("0", "last")

Place = tuple[str, str, str]
"""When, how, which."""


def index_of(which: str) -> int:
    """Returns the process index."""
    return {"0": 0, "last": PROCESSES - 1}[which]


_ONE_WAIT = "a wait for other processes, as `deadlock: collective`"
_SILENT = "silent to the notebook, as `loop`"

_SEE = "what differs is dispatched: see `collective`"
_NO_ROW = (
    ("starting", "deadlock", DEADLOCKS, _SILENT),
    ("starting", "mismatch", MISMATCHES, "no code of the user's runs"),
    ("idle", "deadlock", DEADLOCKS, "nobody waits for an idle process"),
    ("idle", "mismatch", MISMATCHES, "nothing is dispatched"),
    ("Python", "mismatch", MISMATCHES, _SEE),
    ("pull", "deadlock", WAITS_IN_JAX[1:], _ONE_WAIT),
    ("pull", "mismatch", COMPUTATIONS, _SEE),
    ("push", "deadlock", WAITS_IN_JAX[1:], _ONE_WAIT),
    ("push", "mismatch", MISMATCHES, "the notebook gives all processes one value"),
    ("re-forming", "deadlock", DEADLOCKS, _SILENT),
    ("re-forming", "mismatch", COMPUTATIONS, "nothing of the user's is dispatched"),
)

NO_ROW = {(when, f"{how}: {kind}"): why for when, how, kinds, why in _NO_ROW for kind in kinds}
"""When and how, to why there is no row for either process."""


def all_places() -> set[Place]:
    """Returns all that there could be a row for."""
    return set(product(WHEN, HOW, WHICH))


@dataclass(frozen=True)
class Row:
    """One fault, and what becomes of it.

    Attributes:
        when: What the group is doing.
        how: What happens to one process.
        which: That process.
        raises: The name of the exception or warning that the notebook gets; empty for none.
        names: What its message, or the notices before it, have in them. ``{which}`` is the
            process index, ``{pid}`` its process id, ``{others}`` the others, ``{ranks}`` their
            indices, ``{parts}`` these and the process, ``{have}``
            the verb that goes with the others, ``{count}`` how many processes there are, ``{x}``
            and ``{long}`` the lengths of those arrays, ``{mine}`` why a new process does not get
            that, ``{cell}`` the cell's number, ``{fault}`` and ``{wait}`` the lines of the fault
            and of the wait.
        state: The session's state then.
        presses: How often the user presses Interrupt.
        then: What the user types: nothing, ``"recover"``, ``"restart"`` or ``"start"``.
        is_replaced: Whether the process is a new one in the end.
    """

    when: str
    how: str
    which: str
    raises: str
    names: tuple[str, ...] = ()
    state: str = "ready"
    presses: int = 0
    then: str = ""
    is_replaced: bool = False

    @property
    def index(self) -> int:
        """The process index."""
        return index_of(self.which)

    @property
    def kind(self) -> str:
        """What is after the colon of ``how``; all of it if there is none."""
        return self.how.rpartition(": ")[2]

    @property
    def is_rescued(self) -> bool:
        """Whether the process's variables are read out before it is ended: its sentinel answers."""
        return self.is_replaced and self.how.startswith("deadlock")

    @property
    def what_is_raised(self) -> str:
        """The exception, and what the user pressed before it, for people."""
        pressed = ("", " after Interrupt", " after Interrupt, twice")[self.presses]
        return f"{self.raises or 'nothing'}{pressed}"

    @property
    def afterwards(self) -> str:
        """The state, and what the user types to go on, for people."""
        typed = {
            "": "",
            "recover": ", then `%spmd_recover`",
            "restart": ", then `%spmd_restart`",
            "start": ", then `%spmd_start`",
        }[self.then]
        new = ", the process is a new one" if self.is_replaced and not self.then else ""
        return f"{self.state}{new}{typed}"

    def __str__(self) -> str:
        how = self.how.replace(": ", "-").replace(" ", "_")
        return f"{self.when}-{how}-{self.which}"


WHO = "Process {which} of {count} (pid {pid})"
DEATHS = {
    "os._exit": f"{WHO} ended with exit status 7",
    "SIGSEGV": f"{WHO} was killed by SIGSEGV",
    "SIGKILL": f"{WHO} was killed by SIGKILL",
}
RAISED = {
    "raise": "process {which} raised ValueError: boom at line {fault}",
    "sys.exit": "process {which} raised SystemExit: 3 at line {fault}",
}
INTERRUPTED = "raised KeyboardInterrupt"
SILENT = ("did not answer the interrupt", "process {which} did not end the cell")
GAVE_UP = "process {which} did not end the cell"
SWALLOWED = ("Process {which} caught the interrupt and went on", GAVE_UP)
IN_CPP = (
    "{Others} did not answer the interrupt within",
    "Code that waits in C++, or in a computation's callback",
    "{others} did not end the cell",
)
REPLACED = (
    "Process {which} was stopped, and was ended by force",
    "nobody else had a replica",
    "{mine}",
)

RESCUED = "Process {which} did not respond; its variables were read from memory"


def both(when: str, how: str, raises: str, *names: str, **settings: object) -> Iterator[Row]:
    """Yields a row for each of the processes."""
    for which in WHICH:
        yield Row(when, how, which, raises, names, **settings)  # type: ignore[arg-type]


def starting() -> Iterator[Row]:
    """The processes join each other: one cannot import what JAX loads, or never comes."""
    ends = {
        "raise": ("ended with exit status 1", "ValueError: boom"),
        "sys.exit": ("ended with exit status 3",),
        "os._exit": ("ended with exit status 7",),
        "SIGSEGV": ("was killed by SIGSEGV", "Segmentation fault"),
        "SIGKILL": ("was killed by SIGKILL",),
    }
    stopped = "Everything that had started has been stopped"
    for how, told in ends.items():
        names = ("Process {which} of {count}", "while the group was starting", *told, stopped)
        yield from both("starting", how, "StartError", *names, state="closed", then="start")
    for how, doing in {"SIGSTOP": "is stopped", "loop": "is computing"}.items():
        told = ("did not register", f"process {{which}} {doing}", stopped)
        yield from both("starting", how, "StartError", *told, state="closed", then="start")


def idle() -> Iterator[Row]:
    """No cell runs; what Python does is done in a thread that an earlier cell has left."""
    for how in ("raise", "sys.exit", "loop"):
        yield from both("idle", how, "", *(("ValueError: boom",) if how == "raise" else ()))
    for how, told in DEATHS.items():
        yield from _death("idle", how, told)
    yield from both("idle", "SIGSTOP", "CellError", *SILENT, *REPLACED, presses=2, is_replaced=True)


def _death(when: str, how: str, *told: str) -> Iterator[Row]:
    yield from both(
        when,
        how,
        "ProcessDiedError",
        *told,
        "%spmd_recover",
        state="broken",
        then="recover",
        is_replaced=True,
    )


def in_python() -> Iterator[Row]:
    """A cell runs Python code on all processes; but for deaths, the others come to its end."""
    for how, told in RAISED.items():
        yield from both("Python", how, "CellError", told, "(cell [{cell}])")
    for how, told in DEATHS.items():
        yield from _death("Python", how, told, "while it ran cell [{cell}]")
    yield from both(
        "Python", "SIGSTOP", "CellError", *SILENT, *REPLACED, presses=2, is_replaced=True
    )
    yield from both("Python", "loop", "CellError", "process {which} " + INTERRUPTED, presses=1)
    for kind in AGREED:
        told = ("process {which} raised DivergenceError", "{others}: had finished")
        yield from both("Python", f"deadlock: {kind}", "CellError", *told)
    told = ("Process {which} did not answer the interrupt", GAVE_UP, RESCUED)
    yield from both("Python", "deadlock: key", "CellError", *told, presses=2, is_replaced=True)
    for kind in WAITS_IN_PYTHON[:2]:
        told = "process {which} " + INTERRUPTED
        yield from both("Python", f"deadlock: {kind}", "CellError", told, presses=1)
    for kind in WAITS_IN_PYTHON[2:]:
        told = (*SWALLOWED, RESCUED)
        yield from both(
            "Python", f"deadlock: {kind}", "CellError", *told, presses=2, is_replaced=True
        )


def in_a_collective() -> Iterator[Row]:
    """All other processes wait in a collective for the one; in deadlocks in one of a kind."""
    for how, told in RAISED.items():
        word = told.partition(" raised ")[2].partition(":")[0]
        left = ("DivergenceError: The processes do not agree", f"process {{which}}: raised {word}")
        yield from both("collective", how, "CellError", told, *left)
    for how, told in DEATHS.items():
        yield from _death("collective", how, told, "while it ran cell [{cell}]")
    yield from both(
        "collective", "SIGSTOP", "CellError", *SILENT, *REPLACED, presses=2, is_replaced=True
    )
    told = "process {which} " + INTERRUPTED
    stopped = (told, "{others} " + INTERRUPTED)
    yield from both("collective", "loop", "CellError", *stopped, presses=1)
    for kind in (*AGREED, *WAITS_IN_PYTHON[:2]):
        yield from both("collective", f"deadlock: {kind}", "CellError", *stopped, presses=1)
    yield from both(
        "collective", "deadlock: key", "CellError", told, *IN_CPP, presses=2, is_replaced=True
    )
    for kind in WAITS_IN_PYTHON[2:]:
        gave_up = (*SWALLOWED, RESCUED)
        yield from both(
            "collective", f"deadlock: {kind}", "CellError", *gave_up, presses=2, is_replaced=True
        )


PARTED = {
    "order": ("process {which}: was to dispatch jit(doubled)",),
    "constant": (
        "all were to dispatch jit(<lambda>)",
        "different programs on processes {parts}",
    ),
    "shape": ("process {which}: was to dispatch jit(total) float32[{long}]",),
    "some ranks": ("not asked to run the cell",),
    "scalars": ("different inputs on processes {parts}",),
    "NumPy arrays": ("different inputs on processes {parts}",),
    "keys": ("different inputs on processes {parts}",),
}


def parted() -> Iterator[Row]:
    """The processes do not dispatch the same computations."""
    for kind, names in PARTED.items():
        told = ("The processes do not agree on dispatch", *names, "None of it has run")
        yield from both("collective", f"mismatch: {kind}", "CellError", *told)
    stopped = "raised DivergenceError: The processes do not agree on dispatch"
    for kind, *told in (
        ("one more", f"process {{which}} {stopped}", "{others}: had finished"),
        ("one fewer", stopped, "process {which}: had finished"),
    ):
        yield from both("collective", f"mismatch: {kind}", "CellError", *told)
    yield from both(
        "collective", "mismatch: replicas", "", "Replicas differ", "process {which}", "≠"
    )


def pull() -> Iterator[Row]:
    """One process runs code of the user's to give a value: its ``__reduce__``."""
    for how, told in {"raise": "ValueError: boom", "sys.exit": "SystemExit: 3"}.items():
        names = ("`faulty` on process {which} cannot be pulled", told, "Nothing was moved")
        yield from both("pull", how, "JaxnbError", *names)
    yield from _moving("pull", "`faulty` was pulled")
    alone = ("`faulty` on process {which} cannot be pulled", "{others}: had finished")
    yield from both("pull", "deadlock: collective", "JaxnbError", *alone)
    shapes = ("float32[{x}] ", "float32[{long}] ", " on process {which}")
    yield from both("pull", "mismatch: shape", "UsageError", *shapes)
    yield from both(
        "pull",
        "mismatch: some ranks",
        "UsageError",
        "{Others} {have} no `odd`",
        "For process {which} only, type `spmd.pull('odd', ranks=[{which}])`",
    )
    for kind in ("scalars", "NumPy arrays", "keys"):
        yield from both("pull", f"mismatch: {kind}", "", "{others}: 0", "process {which}: 1")
    yield from both(
        "pull",
        "mismatch: replicas",
        "ReplicasDifferWarning",
        "The replicas of `odd` differ",
        "{others}",
        "process {which}",
    )


def push() -> Iterator[Row]:
    """One process runs code of the user's to make a value; the old one must stay everywhere."""
    for how, told in {"raise": "ValueError: boom", "sys.exit": "SystemExit: 3"}.items():
        names = ("Process {which} of {count} raised", told, "`plain` was pushed only in part")
        yield from both("push", how, "JaxnbError", *names)
    yield from _moving("push", "`plain` was pushed")
    alone = ("Process {which} of {count} raised DivergenceError", "{others}: had finished")
    yield from both("push", "deadlock: collective", "JaxnbError", *alone)


def _moving(when: str, doing: str) -> Iterator[Row]:
    for how, told in DEATHS.items():
        yield from _death(when, how, told, f"while {doing}")
    silent = ("process {which} did not answer the interrupt", "%spmd_recover")
    stuck = ("SIGSTOP", "deadlock: swallow", "deadlock: swallow all")
    for how in stuck:
        yield from both(
            when,
            how,
            "KeyboardInterrupt",
            *silent,
            state="broken",
            presses=2,
            then="recover",
            is_replaced=True,
        )
    for how in ("loop", "deadlock: subprocess", "deadlock: lock"):
        yield from both(when, how, "KeyboardInterrupt", presses=1)


def re_forming() -> Iterator[Row]:
    """Process 1 has died; while it is being replaced, another one runs code of the user's."""
    for how, told in {"raise": "ValueError: boom", "sys.exit": "SystemExit: 3"}.items():
        yield from both("re-forming", how, "", "faulty", told)
    for how in DEATHS:
        yield from both("re-forming", how, "", "had died", is_replaced=True)
    yield from both("re-forming", "SIGSTOP", "", *REPLACED[:1], is_replaced=True)
    yield from both("re-forming", "loop", "", "faulty", "to pickle it takes too long")
    for kind in ("shape", "scalars", "NumPy arrays", "keys"):
        yield from both("re-forming", f"mismatch: {kind}", "", "`odd`", "differs by process")
    yield from both(
        "re-forming", "mismatch: some ranks", "", "process {other} does not have it either"
    )
    told = ("  odd  ", "its replicas differ by process")
    yield from both("re-forming", "mismatch: replicas", "", *told)


ROWS: tuple[Row, ...] = (
    *starting(),
    *idle(),
    *in_python(),
    *in_a_collective(),
    *parted(),
    *pull(),
    *push(),
    *re_forming(),
)


def has_meaning(row: Row) -> bool:
    """Whether a row can be played in a group of this shape."""
    if row.when == "re-forming" and PROCESSES < 3:  # one dies, one has the fault, one is well
        return False
    # Where a process has several devices, one Interrupt ends this wait: see test_between_cells.
    return DEVICES == 1 or row.when != "push" or row.kind != "collective"


def depends_on_patience(row: Row) -> bool:
    """Whether the row's process never answers, and how long it is waited for decides."""
    return row.when in ("starting", "re-forming") and row.how in ("SIGSTOP", "loop")


def hangs(row: Row) -> bool:
    """Whether the row's process has to be interrupted, or ended by force."""
    return row.how == "SIGSTOP" or row.how.startswith("deadlock")


def keys(row: Row) -> Iterator[Hashable]:
    """Yields what the gate has to show: of rows that hang, one of each kind of wait."""
    if depends_on_patience(row):
        return
    if hangs(row):
        groups = {"in JAX": WAITS_IN_JAX, "in Python": WAITS_IN_PYTHON[:2]}
        yield "hangs", next((g for g, kinds in groups.items() if row.kind in kinds), row.kind)
        return
    if row.when == "re-forming" and row.how.startswith("mismatch"):
        return  # as all that one process alone has
    yield "how", row.how
    yield "which", row.when, row.which
    yield "raises", row.when, row.raises, row.then
    yield from words(" ".join(row.names))


def words(message: str) -> set[str]:
    """Returns the words of a message, or of a pattern of one; not the names of the user's."""
    plain = re.sub(r"`[^`]*`|\{\w+\}|\(\?s\)|\\[a-zA-Z]", " ", message)
    return set(re.findall(r"[A-Za-z]{3,}", plain))


def covering(keys_of: dict[Any, set[Hashable]]) -> list[Any]:
    """Returns what has all keys together: each time the first with most of those still missing."""
    missing = set().union(*keys_of.values())
    chosen = []
    while missing:
        chosen.append(max(keys_of, key=lambda each: len(keys_of[each] & missing)))
        missing -= keys_of[chosen[-1]]
    return chosen


def in_the_gate() -> list[Row]:
    """Returns the rows that ``make test`` plays: always the same, which have all keys."""
    return covering({row: set(keys(row)) for row in ROWS if has_meaning(row)})
