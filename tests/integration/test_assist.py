"""Names and documentation from a process, whatever its objects and its main thread do."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from integration.conftest import Gate
from jaxnb.assist import completion
from jaxnb.assist.completion import Code
from jaxnb.cells.result import CellResult
from jaxnb.session import Session
from support.fixtures import PATIENT_SECONDS, until

ANSWERS = "import jaxnb.assist.process_assist as assist\nassist.ANSWER_SECONDS = {}\ndel assist"
"""Has processes look for so long."""

MAKE_ARRAY = """
mesh = jax.make_mesh((jax.device_count(),), ('x',))
x = jax.make_array_from_callback((8,), NamedSharding(mesh, P('x')), lambda i: np.arange(8.)[i])
"""


@pytest.fixture
def patient(session: Session, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """The shared group; who types waits for answers, however late they come."""
    monkeypatch.setattr(completion, "DEADLINE_SECONDS", PATIENT_SECONDS)
    session.run(ANSWERS.format(PATIENT_SECONDS))
    yield session
    session.run(ANSWERS.format(0.08))


def tab(session: Session, code: str) -> list[str]:
    """Returns what Tab gives at the end of some code, from where the words begin."""
    _, words = session.assist.complete(Code(code, len(code), 0))
    return list(words)


@pytest.mark.parametrize("mode", ["strict", "off"])
@pytest.mark.parametrize(
    "code",
    [
        "class Odd:\n    def __dir__(self): raise KeyError('no')",
        "class Odd:\n    def __dir__(self): return [1, None]",
        "class Odd:\n    def __getattr__(self, name): raise SystemExit",
        "class Odd:\n    @property\n    def __class__(self): raise ZeroDivisionError",
        "class Odd:\n    def __repr__(self): raise MemoryError\n    __str__ = __repr__",
        "class Odd:\n    __doc__ = property(lambda self: 1 / 0)",
        "class Odd:\n    def _ipython_key_completions_(self): raise KeyboardInterrupt",
    ],
)
def test_objects_that_raise_are_no_obstacle(
    patient: Session, gate: Gate, code: str, mode: str
) -> None:
    patient.run(f"{code}\nodd = Odd()\nfine = [1]", check=mode)  # type: ignore[arg-type]
    results: list[CellResult] = []
    cell = threading.Thread(target=lambda: results.append(patient.run(gate.wait)))
    cell.start()
    until(lambda: patient.state == "busy")
    for typed in ("odd.", "odd['", "odd.a.b.", "f(odd."):
        tab(patient, typed)
    patient.assist.inspect("odd", 0)
    patient.assist.inspect("odd.a", 1)
    assert tab(patient, "fine.app") == [".append"]
    gate.open()
    cell.join()
    assert [each.stderr for each in results] == [""]


@pytest.mark.parametrize(
    "code",
    [
        "class Odd:\n    def __dir__(self): return list(map(str, np.ones(int(x.sum()))))",
        "class Odd:\n    def __dir__(self): return [str(jax.jit(lambda v: v * 2)(x).sharding)]",
        "class Odd:\n    def __dir__(self): return [str(before(x))]\n"
        "before = jax.jit(lambda v: v.sum() + 1)\nbefore(x), before(x)",
    ],
)
def test_nothing_is_computed_over_several_processes(patient: Session, code: str) -> None:
    patient.run(f"{MAKE_ARRAY}{code}\nodd = Odd()")
    assert tab(patient, "odd.") == []
    # Had it been asked of the others, it would wait, and this cell would not be the next.
    result = patient.run("float(x.sum())")
    assert (result.value, result.divergence) == (28.0, None)
    assert tab(patient, "x.shar") == [".sharding"]


def test_what_blocks_keeps_nobody_from_answering(patient: Session, gate: Gate) -> None:
    patient.run(
        f"class Odd:\n    def __dir__(self): {gate.wait}; return ['late']\nodd = Odd()\nfine = [1]"
    )
    patient.run(ANSWERS.format(0.0))
    for _ in range(3):
        assert tab(patient, "odd.") == []
    patient.run(ANSWERS.format(PATIENT_SECONDS))
    assert tab(patient, "fine.app") == [".append"]
    patient.run(ANSWERS.format(0.0))
    for _ in range(3):  # from here on nothing more is looked at
        assert tab(patient, "odd.") == []
    patient.run(ANSWERS.format(PATIENT_SECONDS))
    assert tab(patient, "fine.ins") == []
    assert patient.where().keys() == {0, 1, 2, 3}
    gate.open()
    while tab(patient, "fine.ins") != [".insert"]:
        pass


def test_a_process_that_is_stopped_or_dead(
    make_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = make_session(2)
    session.run(f"mine = {{'alpha': 1}}\nother = {{'beta': 1}}\n{ANSWERS.format(PATIENT_SECONDS)}")
    monkeypatch.setattr(completion, "DEADLINE_SECONDS", PATIENT_SECONDS)
    assert tab(session, "mine['") == ["alpha"]
    pids = [each.pid for each in session.processes]
    monkeypatch.setattr(completion, "DEADLINE_SECONDS", 0.0)
    os.kill(pids[0], signal.SIGSTOP)
    try:
        assert tab(session, "mine['") == []
        assert session.assist.inspect("mine", 0) == {}
    finally:
        os.kill(pids[0], signal.SIGCONT)
    os.kill(pids[0], signal.SIGKILL)
    until(lambda: len(session.deaths) == 1)
    monkeypatch.setattr(completion, "DEADLINE_SECONDS", PATIENT_SECONDS)
    assert tab(session, "other['") == ["beta"]  # process 1 answers
    os.kill(pids[1], signal.SIGKILL)
    until(lambda: len(session.deaths) == 2)
    assert tab(session, "other['") == []
    session.close()
    assert tab(session, "jn") == []


def test_odd_names_and_large_things(patient: Session) -> None:
    patient.run(
        "globals().update({'a b': 1, 1: 2, 'ü': 3, '\\udc80': 4, 'long_' + 'x' * 5000: 5})\n"
        "whole = np.zeros(1 << 27)\nlisted = list(range(100_000))\nd = {('t', 1): 2, 'k\\n': 1}"
    )
    assert "ü" in tab(patient, "")
    assert "ü" in patient.assist.names()
    tab(patient, "d['")
    tab(patient, "d[")
    assert "float64" in str(tab(patient, "whole.dt")) or tab(patient, "whole.dt") == [".dtype"]
    assert "ndarray" in patient.assist.inspect("whole", 0)["text/plain"]
    assert "100000" in patient.assist.inspect("listed", 0)["text/plain"]
    for code in ("", ".", "x\x00", "(" * 200, "'", "\\", "\n\n", "a" * 100_000, "x.\u2028", "é."):
        tab(patient, code)
    assert tab(patient, "who") == ["whole"]
    assert tab(patient, "x = '" + "a" * 100_000 + "' + who") == []
    assert tab(patient, "x = '" + "a" * 100_000 + "'\nwho") == ["whole"]
    for name in ("", "1", "x y", "\x00", "%time", "nope.nope", "a." * 1000):
        patient.assist.inspect(name, 0)
    patient.run("globals().pop(1)")
