"""What processes dispatch together is recorded and agreed on, on real processes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import jaxnb
from jaxnb.cells import card_cell
from jaxnb.cells.result import CellResult
from jaxnb.cells.sinks import NoSink
from jaxnb.errors import CellError, DivergenceWarning, UsageError
from jaxnb.model.group import Waits
from jaxnb.session import Session
from support.fixtures import CLEAR, assert_usable

SETUP = """
import functools, threading
from jax.experimental import multihost_utils as mh
n = jax.device_count()
mesh = jax.make_mesh((n,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
def make(size):
    return jax.make_array_from_callback((size,), NamedSharding(mesh, P("d")),
                                        lambda i: np.arange(float(size), dtype=np.float32)[i])
x, long = make(2 * n), make(4 * n)
total, doubled = jax.jit(jnp.sum), jax.jit(lambda a: (2 * a).sum())
scaled = jax.jit(lambda a, b: a * b)
step = jax.jit(lambda a: a + 1)
mine = jax.jit(lambda a: a + 1)(np.arange(3.0))
float(total(x)), float(total(long)), float(doubled(x))
"""


@pytest.fixture(scope="module")
def module_group() -> Iterator[Session]:
    with jaxnb.start(3, devices_per_process=1, platform="cpu") as session:
        yield session


@pytest.fixture
def group(module_group: Session) -> Session:
    module_group.run(CLEAR)
    module_group.run(SETUP)
    return module_group


def refused(
    group: Session, code: str, who: set[int] | None = None, **settings: object
) -> CellResult:
    """Runs code whose processes do not agree; returns what that did, which is nothing."""
    before = group.processes, group.helper_pids()
    with pytest.raises(CellError) as caught:
        group.run(code, **settings)  # type: ignore[arg-type]
    result = caught.value.result
    found = {i for i, e in result.errors.items() if e.type_name == "DivergenceError"}
    assert found == (set(result.per_process) if who is None else who)
    said = {result.errors[i].message for i in found}
    assert len(said) == 1  # all say the same
    assert "None of it has run" in said.pop()
    assert (group.processes, group.helper_pids()) == before  # nothing to be repaired
    with no_alarm():
        assert group.run("float(total(x))").value == sum(range(2 * group.run("n").value))
    return result


class Keeps(NoSink):
    """Keeps notices."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)


@contextmanager
def no_alarm() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DivergenceWarning)
        yield


REFUSED = {
    "order": (
        "if process_index == 1:\n    a, b = doubled(x), total(x)\n"
        "else:\n    a, b = total(x), doubled(x)\nfloat(a), float(b)",
        "program",
    ),
    "replicas of keys": (
        "words = np.array([0, process_index], np.uint32)\n"
        "mine = jax.random.wrap_key_data(jax.make_array_from_callback((2,), "
        "NamedSharding(mesh, P()), lambda index: words))\ntotal(jax.random.key_data(mine));",
        "input",
    ),
    "barrier": (
        "from jax._src import distributed\n"
        "distributed.global_state.client.wait_at_barrier(f'{process_index > 0}', 60_000)",
        "program",
    ),
}
"""Those that the table of what is unequal does not have."""


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.usefixtures("patient_answers")
def test_processes_that_would_part_are_stopped(group: Session, case: str) -> None:
    code, cause = REFUSED[case]
    result = refused(group, code)
    assert result.divergence is not None
    assert result.cause == cause
    (noted,) = [each for each in group.history if each.cell == result.cell]
    assert (noted.outcome, noted.cause) == ("diverged", cause)
    made = [side.dispatch for side in result.divergence.sides if side.dispatch is not None]
    assert all(dispatch.line is not None for dispatch in made)


def test_one_that_makes_fewer_is_told_of(group: Session) -> None:
    others = set(range(1, group.num_processes))
    for code in ("step(x)\nif process_index: step(x);", "if process_index: total(x);"):
        result = refused(group, code, others)
        assert result.cause == "missing"
        assert result.divergence is not None
        assert result.divergence.sides[-1].note == "had finished"
    result = refused(group, "for _ in range(3 + (process_index > 0)): step(x);", others)
    assert result.divergence is not None
    assert result.divergence.sides[0].dispatch.which_time == "4th time"
    result = refused(group, "if process_index: raise ValueError('mine')\ntotal(x);", {0})
    assert "raised ValueError at line 1" in result.errors[0].message
    (noted,) = [each for each in group.history if each.cell == result.cell]
    assert (noted.outcome, noted.cause) == ("error", "missing")
    result = refused(group, "step(x);", ranks=[0])
    assert "not asked to run the cell" in result.errors[0].message


@pytest.mark.usefixtures("patient_answers")
def test_how_programs_differ_is_shown(group: Session) -> None:
    """The functions, and the programs with them, are gone when that is asked."""
    sink = Keeps()
    code = "float(jax.jit(lambda a: (a * (3 if process_index else 4)).sum())(x))"
    result = refused(group, code, sink=sink)
    (text,) = sink.notices
    constant = (
        r"The programs differ first in a constant \(f32\[\]\) at line 1 of cell \[\d+\]: "
        r"[34] on process"
    )
    assert re.search(constant, text)
    assert re.search(r"[-+]f32\[\] constant\(3\)   # line 1 of cell", text)
    assert len(text.splitlines()) < 24
    html = card_cell.below_card(result).html.replace("&#34;", '"')
    assert "f32[] constant(3)   # line 1 of cell" in html


HEALTHY = {
    "loop": "for _ in range(50): y = step(x)\nfloat(total(y))",
    "other lines": "y = total(x) if process_index else (\n    total(x))\nfloat(y)",
    "first called elsewhere": (
        "g = jax.jit(lambda a: (a * 5).sum())\n"
        "if process_index:\n    y = g(x)\nelse:\n\n    y = g(x)\nfloat(y)"
    ),
    "work of one": "if process_index == 0: mine = jax.jit(lambda a: a @ a)(jnp.ones((9, 9)));",
    "nested": "outer = jax.jit(lambda a: total(a) + doubled(a))\nfloat(outer(x))",
    "shard_map": (
        "jax.shard_map(lambda a: jax.lax.psum(a, 'd'), mesh=mesh, in_specs=P('d'),\n"
        "              out_specs=P())(x);"
    ),
    "keyword, static, donated": (
        "f = jax.jit(lambda a, k, m: a * k + m, static_argnums=1, donate_argnums=0)\n"
        "f(x + 0, 3, m=2.0); f(x + 0, 3, m=2.0); f(x + 0, 4, m=2.0);"
    ),
    "ahead of time": "c = total.lower(x).compile()\nfloat(c(x)), float(c(x))",
    "multihost": "mh.process_allgather(np.ones(3)); mh.sync_global_devices('here')",
    "device_put": "jax.device_put(np.ones(2 * n, np.float32), x.sharding);",
    "all fail alike": (
        "y = x + 0; y.delete()\ntry: step(y)\nexcept RuntimeError: pass\nexcept ValueError: pass"
    ),
    "thread": "t = threading.Thread(target=lambda: step(x)); t.start(); t.join()",
    "callback": "jax.jit(lambda a: jax.debug.callback(lambda v: None, a.sum()))(jnp.ones(3));",
    "clear_caches": "step(x); jax.clear_caches(); step(x); step(x);",
    "files of each process": (
        "import tempfile\nfolder = {'xla_dump_to': tempfile.mkdtemp()}\n"
        "jax.jit(lambda a: a * 7, compiler_options=folder)(x);"
    ),
}


@pytest.mark.usefixtures("patient_answers")
def test_processes_in_step_raise_no_alarm(group: Session) -> None:
    with no_alarm():
        for code in HEALTHY.values():
            for _ in range(2):
                assert group.run(code).divergence is None, code
    assert_usable(group)


def test_jax_is_as_without_hooks_beside_dispatches(group: Session) -> None:
    """Jitted functions refer to functions of JAX that are replaced; so do deleted arrays."""
    code = (
        "import cloudpickle\nagain = cloudpickle.loads(cloudpickle.dumps(total))\n"
        "gone = jnp.arange(3.0); gone.delete()\nfloat(again(x)) == float(total(x)), gone._arrays"
    )
    for mode in ("off", "strict"):
        assert group.run(code, check=mode).value == (True, None)  # type: ignore[arg-type]


def test_what_was_called_while_it_was_off_is_recorded_afterwards(group: Session) -> None:
    group.run("for _ in range(3): step(x), x * 2", check="off")
    assert not group.recordings()[0].dispatches
    refused(group, "x * (2 + process_index);")


PAIR = """
def over(*two):
    pair = [d for d in jax.devices() if d.process_index in two]
    spread = NamedSharding(jax.make_mesh((len(pair),), ("p",), devices=pair), P("p"))
    if process_index in two:
        return jax.make_array_from_callback((len(pair),), spread, lambda i: np.ones(len(pair))[i])
a, b, c = over(0, 1), over(1, 2), over(0, 2)
"""


def test_pairs_of_processes_agree_and_are_told_of_rings(group: Session) -> None:
    group.run(PAIR)
    in_step = (
        "if process_index in (0, 1): total(a)\nif process_index in (1, 2): total(b)\n"
        "if process_index in (0, 2): total(c)\nfloat(total(x))"
    )
    with no_alarm():
        assert group.run(in_step).divergence is None
    # Each waits for the next, and no two of them for each other.
    ring = (
        "if process_index == 0:\n    total(a), total(c)\n"
        "elif process_index == 1:\n    total(b), total(a)\n"
        "else:\n    total(c), total(b)"
    )
    result = refused(group, ring)
    assert result.cause == "order"
    kind = "jit(sum) float32[2] -> float32[]"
    for i, line, over in ((0, 2, "0-1"), (1, 4, "1-2"), (2, 6, "0,2")):
        said = f"process {i}: was to dispatch {kind} at line {line}"
        assert said in result.errors[0].message
        assert f"over processes {over}" in result.errors[0].message
    result = refused(
        group,
        "if process_index == 0:\n    total(x), total(a)\n"
        "elif process_index == 1:\n    total(a), total(x)\n"
        "else:\n    total(x);",
    )
    assert result.cause == "order"


def test_code_that_catches_it_goes_on(group: Session) -> None:
    """Nothing has run, so what comes next is agreed on as ever."""
    code = (
        "from jaxnb.errors import DivergenceError\ncaught = 0\n"
        "for _ in range(100):\n"
        "    try: total(x * (1 + process_index))\n"
        "    except DivergenceError: caught += 1\n"
        "caught, float(total(x))"
    )
    sink = Keeps()
    assert group.run(code, sink=sink).value[0] == 100
    assert sink.notices == [
        f"Processes 0-{group.num_processes - 1} caught a DivergenceError at line 4 and continued: "
        "the refused computation ran on no process."
    ]
    assert_usable(group)


class InterruptsWhoWaits(NoSink):
    """Interrupts once it is shown that processes wait."""

    def __init__(self, session: Session) -> None:
        self._session, self.notices = session, list[str]()

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def waits(self, waits: Waits) -> None:
        self._session.interrupt()


def test_who_cannot_begin_says_so_and_strands_nobody(group: Session) -> None:
    group.run(
        "from jaxnb.lockstep import process_ask_conductor\n"
        "kept = process_ask_conductor.Lockstep.begin\n"
        "def begin(*arguments): raise OSError('no file can be opened')\n"
        "if process_index == 1: process_ask_conductor.Lockstep.begin = begin"
    )
    sink = InterruptsWhoWaits(group)
    with pytest.raises(CellError) as caught:
        group.run("float(total(x))", sink=sink)
    errors = caught.value.result.errors
    assert (errors[1].type_name, errors[1].message) == ("OSError", "no file can be opened")
    assert errors[0].type_name == "KeyboardInterrupt"
    assert "Process 1 raised OSError" in sink.notices[0]
    group.run("process_ask_conductor.Lockstep.begin = kept", check="off")
    with no_alarm():
        assert group.run("float(total(x))").divergence is None
    assert_usable(group)


def test_the_mode_of_a_session(group: Session) -> None:
    with pytest.raises(CellError, match="DivergenceError"):
        group.run("x * process_index;")
    with pytest.raises(UsageError, match=r"Unknown check 'strickt'.*'strict'.*Nothing was run"):
        group.run("1", check="strickt")  # type: ignore[arg-type]
    with no_alarm():
        group.run("x * process_index;", check="off")
