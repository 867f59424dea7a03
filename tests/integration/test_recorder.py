"""What processes dispatch together is recorded, compared, and agreed on, on real processes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from integration.conftest import gate_runs
from jaxnb.display import cards
from jaxnb.errors import CellError, DivergenceWarning, ProcessDiedError, UsageError
from jaxnb.model import Divergence
from jaxnb.session import Session
from jaxnb.sinks import NoSink
from jaxnb_fixtures import CLEAR, assert_usable

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


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((3, 1), id="3x1"),
        pytest.param((2, 2), id="2x2", marks=pytest.mark.timing),
    ],
)
def module_group(request: pytest.FixtureRequest) -> Iterator[Session]:
    import jaxnb

    n, devices = request.param
    with jaxnb.start(n, devices_per_process=devices, platform="cpu") as session:
        yield session


@pytest.fixture
def group(module_group: Session) -> Session:
    module_group.run(CLEAR)
    module_group.run(SETUP)
    return module_group


def parted(group: Session, code: str, **settings: object) -> Divergence:
    """Runs code whose processes part; returns where, and checks what it leaves behind."""
    with pytest.warns(DivergenceWarning, match=r"The processes parted in cell \[\d+\]"):
        result = group.run(code, **settings)  # type: ignore[arg-type]
    assert group.last_result is result
    assert result.divergence is not None
    assert_usable(group)
    assert group.run("float(total(x))").value == sum(range(2 * group.run("n").value))
    return result.divergence


class Silent(NoSink):
    """Takes notices, so that they are no warnings."""


class Interrupts(NoSink):
    """Interrupts a cell when it has printed; keeps notices."""

    def __init__(self, group: Session) -> None:
        self._group = group
        self.notices: list[str] = []

    def lines(self, lines: object) -> None:
        self._group.interrupt()

    def notice(self, text: str) -> None:
        self.notices.append(text)


@contextmanager
def no_alarm() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DivergenceWarning)
        yield


EVERYONE = {
    "order": (
        "if process_index == 1:\n    a, b = doubled(x), total(x)\n"
        "else:\n    a, b = total(x), doubled(x)\nfloat(a), float(b)",
        "order",
        True,
    ),
    "constant": (
        "float(jax.jit(lambda a: (a * (3 if process_index else 4)).sum())(x))",
        "computation",
        True,
    ),
    "closed-over NumPy array": (
        "c = np.full(2 * n, process_index, np.float32)\njax.jit(lambda a: a + c)(x);",
        "computation",
        False,
    ),
    "large closed-over NumPy array": (
        "c = np.arange(n << 15, dtype=np.float32); c[777] += process_index\n"
        "jax.jit(lambda a: a + c)(make(n << 15));",
        "computation",
        False,
    ),
    "attribute of an FFI call": (
        "a = make((2 * n) ** 2).reshape(2 * n, 2 * n) + 1\n"
        "solve = jax.lax.linalg.triangular_solve\n"
        "jax.jit(lambda a: solve(a, a, left_side=True, lower=process_index == 0))(a);",
        "computation",
        True,
    ),
    "compiler_options": (
        "fast = {'xla_cpu_enable_fast_math': process_index == 0}\n"
        "jax.jit(lambda a: a * 7, compiler_options=fast)(x);",
        "computation",
        False,
    ),
    "number": ("scaled(x, float(process_index));", "inputs", False),
    "NumPy array": ("scaled(x, np.full(2 * n, process_index, np.float32));", "inputs", False),
    "large NumPy array": (
        "big = np.zeros((1 << 20, 1), np.float32); big[77] = process_index\nscaled(x[:1], big);",
        "inputs",
        False,
    ),
    "key": (
        "u = jax.random.bits(jax.random.key(process_index), (2 * n,))\nscaled(x, u);",
        "inputs",
        False,
    ),
    "eager": ("x + process_index;", "inputs", False),
    "eager, other function": ("(x + 1) if process_index else (x * 2);", "computation", False),
    "one fewer, no collective": ("step(x)\nif process_index:\n    step(x);", "missing", False),
}


@pytest.mark.parametrize(
    "case",
    gate_runs(
        ["order", "constant", "number", "one fewer, no collective"], EVERYONE, pytest.mark.timing
    ),
)
@pytest.mark.usefixtures("patient_answers")
def test_processes_that_part_are_told_apart(group: Session, case: str) -> None:
    code, kind, pending = EVERYONE[case]
    found = parted(group, code)
    assert (found.kind, found.pending) == (kind, pending)
    noted = next(each for each in group.history if each.cell == found.cell)
    assert found.cause == noted.cause == CAUSES[kind]
    named = [side.dispatch for side in found.sides if side.dispatch is not None]
    assert all(dispatch.line is not None for dispatch in named)


CAUSES = {
    "order": "order",
    "missing": "missing",
    "shapes": "program",
    "computation": "program",
    "inputs": "input",
}

DIFFERENCES = {
    "constant": (
        EVERYONE["constant"][0],
        r"They differ in a constant \(f32\[\]\) at line 1 of cell \[\d+\]: [34] on process",
        "-f32[] constant(3)   # line 1 of cell",
    ),
    "large constant": (
        "c = np.sin(np.arange(n << 15, dtype=np.float32)); c[777] += process_index\n"
        "jax.jit(lambda a: a + c)(make(n << 15));",
        "They differ in a large constant that they close over: see below",
        "-large constant, digest ",
    ),
    "attribute": (
        EVERYONE["attribute of an FFI call"][0],
        r"They differ first at line 3 of cell \[\d+\], in operands or attributes of `custom-call`",
        "uplo = 85 : ui8",
    ),
    "compiler_options": (
        EVERYONE["compiler_options"][0],
        "They differ in the compiler_options that they were compiled with: see below",
        "xla_cpu_enable_fast_math=True",
    ),
    "eager": (
        EVERYONE["eager, other function"][0],
        r"They differ first at line 1 of cell \[\d+\]: `(add|multiply)` on ",
        "-f32[2] add(f32[2], f32[2])   # line 1 of cell",
    ),
}


def shows(text: str, line: str) -> bool:
    return line in text or line.replace("-", "+", 1) in text


@pytest.mark.parametrize("case", gate_runs(["constant"], DIFFERENCES, pytest.mark.timing))
@pytest.mark.usefixtures("patient_answers")
def test_how_programs_differ_is_shown(group: Session, case: str) -> None:
    """The functions, and the programs with them, are gone when that is asked."""
    code, summary, line = DIFFERENCES[case]
    with pytest.warns(DivergenceWarning, match=summary) as told:
        result = group.run(code)
    assert result.divergence is not None
    assert result.divergence.cause == "program"
    found = result.divergence.program
    assert found is not None
    text = str(told[0].message)
    assert shows(text, line)
    assert len(text.splitlines()) < 24
    assert line.lstrip("-") in cards.below_card(result).html.replace("&#34;", '"')
    last = group.history[-1]
    assert (last.outcome, last.cause) == ("diverged", "program")
    assert_usable(group)


@pytest.mark.timing
@pytest.mark.parametrize("case", DIFFERENCES)
def test_how_programs_differ_is_shown_in_strict_mode(group: Session, case: str) -> None:
    code, _, line = DIFFERENCES[case]
    sink = Interrupts(group)
    with pytest.raises(CellError):
        group.run(code, check="strict", sink=sink)
    assert any(shows(each, line) for each in sink.notices)
    assert group.history[-1].cause == "program"
    assert_usable(group)


@pytest.mark.timing
def test_other_shapes_over_one_cell(group: Session) -> None:
    """The collectives have equal sizes: without a recording the numbers would just be wrong."""
    found = parted(group, "float(total(long if process_index == 1 else x))")
    assert (found.kind, found.pending) == ("shapes", True)


@pytest.mark.usefixtures("patient_answers")
def test_a_cell_on_some_processes_that_touches_a_global_array(group: Session) -> None:
    found = parted(group, "step(x);", ranks=[0])
    assert found.kind == "missing"
    assert found.sides[-1].note == "was not asked to run the cell"


@pytest.mark.timing
def test_one_that_raises_before_the_others_collective(group: Session) -> None:
    """With two devices the others' calls return at once: pending, if nobody looks."""
    code = "if process_index == 1: raise ValueError('mine')\nresult = total(x)"
    with pytest.raises(CellError) as caught:
        group.run(code, sink=Silent())
    found = caught.value.result.divergence
    assert found is not None
    assert (found.kind, found.pending) == ("missing", True)
    assert found.sides[-1].note == "raised ValueError at line 1"
    assert_usable(group)


HEALTHY = {
    "loop": "for _ in range(50): y = step(x)\nfloat(total(y))",
    "other lines": "y = total(x) if process_index else (\n    total(x))\nfloat(y)",
    "first called elsewhere": (
        "g = jax.jit(lambda a: (a * 5).sum())\n"
        "if process_index:\n    y = g(x)\nelse:\n\n    y = g(x)\nfloat(y)"
    ),
    "work of one": "if process_index == 0: mine = jax.jit(lambda a: a @ a)(jnp.ones((9, 9)));",
    "nested": "outer = jax.jit(lambda a: total(a) + doubled(a))\nfloat(outer(x))",
    "grad": "jax.jit(jax.grad(lambda a: (a ** 2).sum()))(x);",
    "vmap": "jax.vmap(step)(x);",
    "scan": "jax.lax.scan(lambda c, _: (c + 1, c.sum()), x, None, length=3);",
    "shard_map": (
        "jax.shard_map(lambda a: jax.lax.psum(a, 'd'), mesh=mesh, in_specs=P('d'),\n"
        "              out_specs=P())(x);"
    ),
    "keyword, static, donated": (
        "f = jax.jit(lambda a, k, m: a * k + m, static_argnums=1, donate_argnums=0)\n"
        "f(x + 0, 3, m=2.0); f(x + 0, 3, m=2.0); f(x + 0, 4, m=2.0);"
    ),
    "pytree": "jax.jit(lambda t: t['a'] + t['b'][0])({'a': x, 'b': [x, None]});",
    "ahead of time": "c = total.lower(x).compile()\nfloat(c(x)), float(c(x))",
    "jit of a jit": "float(jax.jit(total)(x)), float(jax.jit(total)(x))",
    "partial": "float(jax.jit(functools.partial(jnp.sum, axis=0))(x))",
    "multihost": "mh.process_allgather(np.ones(3)); mh.sync_global_devices('here')",
    "device_put": "jax.device_put(np.ones(2 * n, np.float32), x.sharding);",
    "all fail alike": (
        "y = x + 0; y.delete()\ntry: step(y)\nexcept RuntimeError: pass\nexcept ValueError: pass"
    ),
    "thread": "t = threading.Thread(target=lambda: step(x)); t.start(); t.join()",
    "callback": "jax.jit(lambda a: jax.debug.callback(lambda v: None, a.sum()))(jnp.ones(3));",
    "clear_caches": "step(x); jax.clear_caches(); step(x); step(x);",
    "set_mesh": "with jax.set_mesh(mesh):\n    step(x); step(x);",
}


@pytest.mark.parametrize("mode", gate_runs(["record"], ["record", "strict"], pytest.mark.timing))
@pytest.mark.parametrize(
    "case",
    gate_runs(
        [
            "loop",
            "other lines",
            "work of one",
            "shard_map",
            "keyword, static, donated",
            "multihost",
            "device_put",
            "callback",
        ],
        HEALTHY,
        pytest.mark.timing,
    ),
)
@pytest.mark.usefixtures("patient_answers")
def test_processes_in_step_raise_no_alarm(group: Session, case: str, mode: str) -> None:
    with no_alarm():
        for _ in range(2):
            assert group.run(HEALTHY[case], check=mode).divergence is None  # type: ignore[arg-type]
    assert_usable(group)


@pytest.mark.timing
def test_every_call_is_recorded_once(group: Session) -> None:
    code = "for _ in range(5): y = step(x)\nz = total(y)\nstep(mine);"
    for _ in range(3):
        group.run(code)
        for recording in group.recordings().values():
            names = [d.name for d in recording.dispatches]
            assert names == ["jit(<lambda>)"] * 5 + [names[-1]]
            assert [d.number for d in recording.dispatches] == [1, 2, 3, 4, 5, 6]
            assert [d.line for d in recording.dispatches] == [1] * 5 + [2]
            assert [d.collectives for d in recording.dispatches] == [False] * 5 + [True]


@pytest.mark.timing
def test_functions_compute_what_they_would_without(group: Session) -> None:
    code = "v = scaled(step(x), 3.0)\nnp.concatenate([s.data for s in v.addressable_shards])"
    by_mode = [group.run(code, check=mode) for mode in ("off", "record", "strict", "off")]  # type: ignore[arg-type]
    for index in by_mode[0].per_process:
        first, *others = (result.per_process[index].value for result in by_mode)
        for other in others:
            np.testing.assert_array_equal(first, other)


@pytest.mark.timing
def test_what_was_called_while_it_was_off_is_recorded_afterwards(group: Session) -> None:
    group.run("for _ in range(3): step(x), x * 2", check="off")
    assert not group.recordings()[0].dispatches
    parted(group, "step(x)\nif process_index:\n    step(x);")
    parted(group, "x * (2 + process_index);")


@pytest.mark.timing
def test_a_long_cell_is_remembered_at_its_end(group: Session) -> None:
    parted_at = 4500
    found = parted(
        group, f"for i in range(5000): y = step(x) if i != {parted_at} or process_index else x * 2"
    )
    assert (found.number, found.kind) == (parted_at + 1, "computation")
    found = parted(group, "for i in range(5000): y = step(x) if i or process_index else x * 2")
    assert found.number == 0


@pytest.mark.usefixtures("patient_answers")
def test_where_tells_the_last_dispatch(group: Session) -> None:
    group.run("step(x);")
    last = group.where()[0].last_dispatch
    assert last is not None
    assert (last.name, last.line, last.number) == ("jit(<lambda>)", 1, 1)


@pytest.mark.timing
def test_an_interrupt_between_collectives_needs_no_new_group(group: Session) -> None:
    """What each has dispatched is known, with several devices too: nothing is pending."""
    sink = Interrupts(group)
    service = group.helper_pids()
    with pytest.raises(CellError):
        group.run("float(total(x)); print('now')\nimport time; time.sleep(1000)", sink=sink)
    (said,) = sink.notices
    assert said.endswith("`jit(sum)` at line 1. No computation was broken off.")
    assert group.helper_pids() == service
    assert_usable(group)


SWAPPED = (
    "if process_index == 1:\n    a, b = doubled(x), total(x)\n"
    "else:\n    a, b = total(x), doubled(x)\nfloat(a), float(b)\n"
)


@pytest.mark.timing
def test_that_a_handler_of_a_signal_has_raised_in_a_dispatch_is_told(group: Session) -> None:
    """It may have come before the computation on one process, and after it on another."""
    code = (
        "import signal\n"
        "from jaxnb.engine import recorder\n"
        "def struck(*_): raise TimeoutError\n"
        "signal.signal(signal.SIGUSR1, struck)\n"
        "kept = recorder.Recorder._note\n"
        "def note(*arguments):\n"
        "    recorder.Recorder._note = kept\n"
        "    kept(*arguments)\n"
        "    signal.raise_signal(signal.SIGUSR1)\n"
        "recorder.Recorder._note = note\n"
        "try: total(x)\n"
        "except TimeoutError: pass"
    )
    divergence = parted(group, code)
    assert [str(side.dispatch) for side in divergence.sides] == [
        f"jit(sum) float32[{2 * group.run('n').value}] -> float32[] at line 11, "
        "which was interrupted"
    ]
    assert divergence.pending


@pytest.mark.timing
def test_that_they_parted_is_told_when_the_cell_is_interrupted_later(group: Session) -> None:
    """The numbers are wrong, whatever has ended the cell."""
    sink = Interrupts(group)
    with pytest.raises(CellError) as caught:
        group.run(f"{SWAPPED}print('now')\nimport time; time.sleep(1000)", sink=sink)
    told = next(text for text in sink.notices if "The processes parted" in text)
    assert "at dispatch 1 over processes 0-" in told
    assert "The same computations came in another order." in told
    assert "cannot be trusted" in told
    assert any("formed anew" in text for text in sink.notices)  # they may have met the wrong ones
    assert caught.value.result.divergence is not None
    assert_usable(group)


@pytest.mark.timing
def test_that_they_parted_is_told_when_some_are_left_behind_later(group: Session) -> None:
    with (
        pytest.warns(DivergenceWarning, match="at dispatch 1 .* cannot be trusted"),
        pytest.raises(CellError) as caught,
    ):
        group.run(f"{SWAPPED}if process_index == 0:\n    raise ValueError('mine')\nfloat(total(x))")
    errors = caught.value.result.errors
    assert (errors[0].type_name, errors[1].type_name) == ("ValueError", "LeftBehindError")
    assert_usable(group)


@pytest.mark.timing
def test_that_some_dispatched_less_is_not_told_of_who_was_left_behind(group: Session) -> None:
    with no_alarm(), pytest.raises(CellError) as caught:
        group.run("if process_index == 0:\n    raise ValueError('mine')\nfloat(total(x))")
    assert caught.value.result.divergence is not None
    assert caught.value.result.errors[1].type_name == "LeftBehindError"
    assert_usable(group)


@pytest.mark.parametrize("swapped", [True, False])
@pytest.mark.timing
def test_that_the_survivors_parted_is_told_when_one_dies_later(
    make_session: Callable[..., Session], swapped: bool
) -> None:
    session = make_session(3)
    session.run(SETUP)
    code = SWAPPED if swapped else "float(total(x)), float(doubled(x))\n"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", DivergenceWarning)
        with pytest.raises(ProcessDiedError):
            session.run(
                f"{code}import os, signal, time\n"
                "if process_index == 2: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(1000)"
            )
    texts = [str(each.message) for each in told if each.category is DivergenceWarning]
    assert [("processes 0" in text or "process 0" in text) for text in texts] == [True] * swapped
    session.recover()
    assert_usable(session)


# ---------------------------------------------------------------------- strict


STRICT = {
    **{name: code for name, (code, _, _) in EVERYONE.items()},
    "shapes": "float(total(long if process_index == 1 else x))",
    "replicas": (
        "mine = jax.make_array_from_callback((4,), NamedSharding(mesh, P()), "
        "lambda index: np.full(4, process_index))\ntotal(mine);"
    ),
    "replicas of keys": (
        "words = np.array([0, process_index], np.uint32)\n"
        "mine = jax.random.wrap_key_data(jax.make_array_from_callback((2,), "
        "NamedSharding(mesh, P()), lambda index: words))\ntotal(jax.random.key_data(mine));"
    ),
    "devices in another order": (
        "devices = mesh.devices[::-1] if process_index else mesh.devices\n"
        "other = NamedSharding(jax.sharding.Mesh(devices, ('d',)), P('d'))\n"
        "total(jax.make_array_from_callback((n,), other, lambda i: np.zeros(n, np.float32)[i]));"
    ),
    "one fewer": "total(x)\nif process_index:\n    total(x);",
    "one fewer, first": "if process_index:\n    total(x);",
}


@pytest.mark.parametrize("case", gate_runs(["constant"], STRICT, pytest.mark.timing))
@pytest.mark.usefixtures("patient_answers")
def test_strict_stops_all_before_anything_runs(group: Session, case: str) -> None:
    service = group.helper_pids()
    with pytest.raises(CellError) as caught:
        group.run(STRICT[case], check="strict")
    result = caught.value.result
    raised = {i: error.type_name for i, error in result.errors.items()}
    assert set(raised.values()) == {"DivergenceError"}
    if "fewer" not in case:
        assert set(raised) == set(result.per_process)
    message = next(iter(result.errors.values())).message
    assert "Nothing of it has run on any of them" in message
    assert "process 0" in message or "processes 0" in message
    assert group.helper_pids() == service  # nothing was pending: no new group was needed
    with no_alarm():
        assert group.run("float(total(x))", check="strict").divergence is None


PAIR = """
def over(*two):
    pair = [d for d in jax.devices() if d.process_index in two]
    spread = NamedSharding(jax.make_mesh((len(pair),), ("p",), devices=pair), P("p"))
    if process_index in two:
        return jax.make_array_from_callback((len(pair),), spread, lambda i: np.ones(len(pair))[i])
y = over(0, 1)
"""


@pytest.mark.timing
def test_strict_stops_who_begin_with_others(make_session: Callable[..., Session]) -> None:
    """Each waits for the other, about other processes."""
    session = make_session(3)
    session.run(SETUP + PAIR)
    with pytest.raises(CellError) as caught:
        session.run(
            "if process_index == 0:\n    total(x), total(y)\n"
            "elif process_index == 1:\n    total(y), total(x)\n"
            "else:\n    total(x);",
            check="strict",
        )
    errors = caught.value.result.errors
    assert {i: e.type_name for i, e in errors.items()} == dict.fromkeys(range(3), "DivergenceError")
    assert (
        "process 0: was to dispatch jit(sum) float32[6] -> float32[] at line 2; "
        "process 1: was to dispatch jit(sum) float32[2] -> float32[] at line 4, over processes 0-1"
    ) in errors[0].message
    assert "process 0: was to dispatch jit(sum) float32[6]" in errors[1].message
    assert "process 1: did not agree with another process at line 4" in errors[2].message
    in_step = "if process_index < 2: total(y)\ntotal(x)\nif process_index < 2: total(y)"
    with no_alarm():
        assert session.run(in_step, check="strict").divergence is None
    assert_usable(session)


RING = """
a, b, c = over(0, 1), over(1, 2), over(0, 2)
"""


@pytest.mark.timing
def test_strict_ends_what_processes_wait_for_in_a_ring(
    make_session: Callable[..., Session], tmp_path: Path
) -> None:
    """No two of them part; process 3 goes on with something else until another one is told."""
    session = make_session(4)
    session.run(SETUP + PAIR + RING)
    session.run(f"import pathlib, time\ntold = pathlib.Path({str(tmp_path)!r}, 'told')")
    with pytest.raises(CellError) as caught:
        session.run(
            "if process_index == 0:\n    total(a), total(c)\n"
            "elif process_index == 1:\n    total(b), total(a)\n"
            "elif process_index == 2:\n"
            "    try: total(c), total(b)\n"
            "    finally: told.touch()\n"
            "else:\n"
            "    while not told.exists(): time.sleep(0.01)\n"
            "    total(x);",
            check="strict",
            timeout=60,
        )
    result = caught.value.result
    errors = result.errors
    assert {i: (e.type_name, e.line) for i, e in errors.items()} == {
        0: ("DivergenceError", 2),
        1: ("DivergenceError", 4),
        2: ("DivergenceError", 6),
        3: ("DivergenceError", 10),
    }
    kind = "jit(sum) float32[2] -> float32[]"
    assert errors[0].message == errors[1].message == errors[2].message
    assert errors[0].message.startswith(
        "The processes wait for each other in a ring: "
        f"process 0: was to dispatch {kind} at line 2, over processes 0-1, and waited for process "
        f"1; process 1: was to dispatch {kind} at line 4, over processes 1-2, and waited for "
        f"process 2; process 2: was to dispatch {kind} at line 6, over processes 0,2, and "
        "waited for process 0. Nothing of it has run"
    )
    assert "did not agree with another process" in errors[3].message
    assert result.divergence is None
    in_step = (
        "if process_index in (0, 1): total(a)\nif process_index in (1, 2): total(b)\n"
        "if process_index in (0, 2): total(c)\nfloat(total(x))"
    )
    with no_alarm():
        assert session.run(in_step, check="strict").divergence is None
    assert_usable(session)


@pytest.mark.timing
def test_strict_tells_code_that_catches_it_of_the_ring(
    make_session: Callable[..., Session],
) -> None:
    """It is an error in the process, and no interrupt: code may go on without the others."""
    session = make_session(3)
    session.run(SETUP + PAIR + RING)
    code = (
        "from jaxnb.errors import DivergenceError\n"
        "try: total((a, b, c)[process_index])\n"
        "except DivergenceError as error: caught = str(error)\n"
        "caught[:44]"
    )
    result = session.run(code, check="strict", timeout=60)
    assert result.value == "The processes wait for each other in a ring:"
    assert_usable(session)


@pytest.mark.timing
def test_strict_calls_no_straggler_in_pairs_a_ring(make_session: Callable[..., Session]) -> None:
    """Each waits for the next for longer than a ring may last, and the last for nobody."""
    session = make_session(3)
    session.run(SETUP + PAIR + RING)
    code = (
        "import time\n"
        "if process_index == 0: total(a)\n"
        "elif process_index == 1: total(b), total(a)\n"
        "else: time.sleep(6); total(b)\n"
        "float(total(x))"
    )
    with no_alarm():
        assert session.run(code, check="strict", timeout=60).divergence is None
    assert_usable(session)


@pytest.mark.timing
def test_strict_goes_on_where_all_were_interrupted_in_agreeing(group: Session) -> None:
    """Each has said what it was about to do, before it was interrupted, and says something new."""
    sink = Interrupts(group)
    code = (
        "import time\n"
        "try:\n"
        "    if process_index == 0:\n        print('now'); time.sleep(1000)\n"
        "    total(x)\n"
        "except KeyboardInterrupt: pass\n"
        "float(doubled(x)) if process_index == {first} else float({rest}(x))"
    )
    for _ in range(3):
        # Who is interrupted first may say what it does next to who was not interrupted yet.
        try:
            group.run(code.format(first=0, rest="doubled"), check="strict", sink=sink)
        except CellError as error:
            ends = {each.type_name for each in error.result.errors.values()}
            # Whose computation was under way when the interrupt came to be seen is freed from it.
            assert ends <= {"DivergenceError", "KeyboardInterrupt"}
        assert_usable(group)
    with pytest.raises(CellError) as caught:
        group.run(code.format(first=0, rest="total"), check="strict", sink=sink)
    assert {e.type_name for e in caught.value.result.errors.values()} == {"DivergenceError"}
    assert_usable(group)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.timing
def test_strict_runs_nothing_after_a_divergence_that_code_has_caught(
    group: Session, last: int
) -> None:
    """Nobody could tell any more which of the processes' next ones belong together."""
    code = (
        "from jaxnb.errors import DivergenceError\n"
        "texts = []\n"
        "for _ in range(20):\n"
        "    try:\n"
        "        total(x) if process_index == 0 else doubled(x)\n"
        "    except DivergenceError as error:\n"
        "        texts.append(str(error))\n"
        f"if process_index == {last}: float(total(x))"
    )
    with pytest.raises(CellError) as caught:
        group.run(code, check="strict", timeout=60)
    assert caught.value.result.divergence is None  # nothing has run
    assert {i: e.type_name for i, e in caught.value.result.errors.items()} == {
        last: "DivergenceError"
    }
    for texts in group.run("texts").per_process.values():
        assert texts.value[0].startswith("The processes do not agree on dispatch 1 over")
        assert (
            texts.value[1:]
            == [
                "The processes did not agree at line 5, earlier in this cell: none of its later "
                "computations over several processes runs. Run what follows in another cell."
            ]
            * 19
        )
    with no_alarm():
        assert group.run("float(total(x))", check="strict").divergence is None
    assert_usable(group)


@pytest.mark.timing
def test_strict_may_be_caught_for_as_long_as_a_cell_likes(group: Session) -> None:
    """Nobody reads any more what a process says that goes on all the same."""
    code = (
        "from jaxnb.errors import DivergenceError\ncaught = 0\n"
        "for _ in range(1000):\n"
        "    try: total(x * (1 + process_index))\n"
        "    except DivergenceError: caught += 1\n"
        "caught"
    )
    with no_alarm():
        assert group.run(code, check="strict", timeout=120).value == 1000
    assert_usable(group)


@pytest.mark.timing
def test_strict_waits_for_the_interrupt_of_who_said_something_else(
    make_session: Callable[..., Session], tmp_path: Path
) -> None:
    """Process 2 was interrupted before, and 0 is when 2 has heard what it said; 1 comes late."""
    session = make_session(3)
    session.run(SETUP)
    session.run(
        "import os, pathlib, signal, time\n"
        "from jaxnb.engine import agreement_peers, agreement_words\n"
        f"first, refused = (pathlib.Path({str(tmp_path)!r}, name) for name in ('pid', 'refused'))\n"
        "kept = agreement_peers.Peer.send\n"
        "def send(self, message):\n"
        "    kept(self, message)\n"
        "    if agreement_words.REFUSED.encode() in message:\n"
        "        os.kill(int(first.read_text()), signal.SIGINT)\n"
        "        refused.touch()\n"
        "if process_index == 2: agreement_peers.Peer.send = send"
    )
    code = (
        "try:\n"
        "    if process_index == 0:\n"
        "        new = first.with_name('new')\n"
        "        new.write_text(str(os.getpid())); new.rename(first)\n"
        "        total(x)\n"
        "    elif process_index == 1:\n"
        "        while not refused.exists(): time.sleep(0.01)\n"
        "    else:\n"
        "        while not first.exists(): time.sleep(0.01)\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt: struck = True\n"
        "float(doubled(x)), refused.exists()"
    )
    with no_alarm():
        result = session.run(code, check="strict", timeout=30)
    assert result.value[1]
    assert session.run("struck", ranks=[0]).value
    assert_usable(session)


@pytest.mark.timing
def test_strict_agrees_though_one_alone_was_interrupted(group: Session) -> None:
    code = (
        "import signal\n"
        "if process_index == 0:\n"
        "    try: signal.raise_signal(signal.SIGINT)\n"
        "    except KeyboardInterrupt: pass\n"
        "if process_index == 0:\n"
        "    y = total(x)\n"
        "else:\n"
        "    y = total(x)\n"
        "float(y)"
    )
    with no_alarm():
        assert group.run(code, check="strict", timeout=30).divergence is None
    assert_usable(group)


ALARM = """
import pathlib, signal, time
def alarm(*_): raise TimeoutError
signal.signal(signal.SIGALRM, alarm)
def broken_off():
    try: signal.setitimer(signal.ITIMER_REAL, 0.1); total(x)
    except TimeoutError: pass
def wait_for(path):
    while not path.exists(): time.sleep(0.01)
"""


@pytest.mark.timing
def test_strict_says_again_what_was_broken_off(group: Session, tmp_path: Path) -> None:
    """A signal of the user's own strikes while a process waits for a straggler."""
    group.run(f"{ALARM}tried = pathlib.Path({str(tmp_path)!r}, 'tried')")
    code = (
        "if process_index == 0:\n"
        "    for _ in range(5): broken_off()\n"
        "    tried.touch()\n"
        "if process_index == jax.process_count() - 1: wait_for(tried)\n"
        "float(total(x))"
    )
    with no_alarm():
        assert group.run(code, check="strict", timeout=60).divergence is None
    assert_usable(group)


@pytest.mark.timing
def test_strict_heeds_what_was_taken_back_before_this_process_came(
    group: Session, tmp_path: Path
) -> None:
    group.run(f"{ALARM}there = pathlib.Path({str(tmp_path)!r}, 'taken back')")
    code = (
        "if process_index == 0:\n"
        "    broken_off(); there.touch()\n"
        "wait_for(there)\n"
        "float(doubled(x))"
    )
    with no_alarm():
        assert group.run(code, check="strict", timeout=30).divergence is None
    assert_usable(group)


@pytest.mark.timing
def test_strict_tells_all_at_once_that_one_gives_up(
    make_session: Callable[..., Session], tmp_path: Path
) -> None:
    """Process 1 sees that 2 waits for all, and gives up; 2 never sees that, as it is struck."""
    session = make_session(3)
    session.run(SETUP + PAIR + "y = over(1, 2)")
    code = (
        "import os, pathlib, signal, time\n"
        "from jaxnb.errors import DivergenceError\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "def wait_for(name):\n"
        "    while not (folder / name).exists(): time.sleep(0.01)\n"
        "def struck(*_): raise TimeoutError\n"
        "signal.signal(signal.SIGUSR1, struck)\n"
        "other = folder / 'pid'\n"
        "if process_index == 2:\n"
        "    other.with_name('new').write_text(str(os.getpid()))\n"
        "    other.with_name('new').rename(other)\n"
        "    try: total(x)\n"
        "    except TimeoutError: (folder / 'struck').touch()\n"
        "    wait_for('told')\n"
        "elif process_index == 1:\n"
        "    wait_for('pid')\n"
        "    try: total(y)\n"
        "    except DivergenceError: os.kill(int(other.read_text()), signal.SIGUSR1)\n"
        "    wait_for('told')\n"
        "else:\n"
        "    wait_for('struck')\n"
        "    try: total(x)\n"
        "    except DivergenceError as error: caught = str(error); (folder / 'told').touch()\n"
        "caught if process_index == 0 else None"
    )
    result = session.run(code, check="strict", timeout=30)
    assert "process 1: did not agree with another process at line 17" in result.per_process[0].value
    assert_usable(session)


@pytest.mark.timing
def test_strict_goes_on_with_what_was_agreed_though_one_gives_up_next(
    make_session: Callable[..., Session], tmp_path: Path
) -> None:
    """Process 0 has agreed with 2, and gives up what comes next before 2 has heard of either."""
    session = make_session(3)
    session.run(SETUP + PAIR + "y, z = over(0, 2), over(0, 1)")
    session.run(
        "import pathlib, time\n"
        "from jaxnb.engine import agreement\n"
        f"ended = pathlib.Path({str(tmp_path)!r}, 'ended')\n"
        "kept = agreement.Agreement._hear_all\n"
        "def late(self, *arguments):\n"
        "    agreement.Agreement._hear_all = kept\n"
        "    while not ended.exists(): time.sleep(0.01)\n"
        "    return kept(self, *arguments)\n"
        "if process_index == 2: agreement.Agreement._hear_all = late"
    )
    code = (
        "if process_index == 0:\n"
        "    step(y)\n"
        "    try: total(z)\n"
        "    finally: ended.touch()\n"
        "elif process_index == 2:\n"
        "    step(y)\n"
        "total(x);"
    )
    with pytest.raises(CellError) as caught:
        session.run(code, check="strict", timeout=30)
    errors = caught.value.result.errors
    assert {i: (e.type_name, e.line) for i, e in errors.items()} == {
        0: ("DivergenceError", 3),
        1: ("DivergenceError", 7),
        2: ("DivergenceError", 7),
    }
    assert caught.value.result.divergence is None
    assert_usable(session)


@pytest.mark.timing
def test_strict_stops_who_has_dispatched_less(make_session: Callable[..., Session]) -> None:
    """An interrupt struck one process after all had agreed: what it makes next is not the same."""
    session = make_session(2, devices_per_process=2)  # dispatches wait for nobody
    session.run(SETUP)
    session.run(
        "from jaxnb.engine import recorder\n"
        "kept = recorder.Recorder._note\n"
        "def struck(*_):\n    recorder.Recorder._note = kept; raise KeyboardInterrupt\n"
        "if process_index: recorder.Recorder._note = struck"
    )
    code = "try: y = total(x)\nexcept KeyboardInterrupt: pass\nfloat(total(x))"
    with pytest.warns(DivergenceWarning), pytest.raises(CellError) as caught:
        session.run(code, check="strict", timeout=30)
    errors = caught.value.result.errors
    assert {e.type_name for e in errors.values()} == {"DivergenceError"}
    assert len(errors) == 2
    assert "at line 3, as dispatch 2" in errors[1].message
    assert "what those computed cannot be trusted" in errors[1].message
    assert_usable(session)


@pytest.mark.timing
def test_who_cannot_begin_in_strict_mode_says_so_and_strands_nobody(group: Session) -> None:
    group.run(
        "from jaxnb.engine import agreement\n"
        "kept = agreement.Agreement.begin\n"
        "def begin(*arguments): raise OSError('no file can be opened')\n"
        "if process_index == 1: agreement.Agreement.begin = begin"
    )
    with pytest.raises(CellError) as caught:
        group.run("float(total(x))", check="strict")
    errors = caught.value.result.errors
    assert (errors[1].type_name, errors[1].message) == ("OSError", "no file can be opened")
    assert errors[0].type_name == "LeftBehindError"
    group.run("agreement.Agreement.begin = kept")
    with no_alarm():
        assert group.run("float(total(x))", check="strict").divergence is None
    assert_usable(group)


@pytest.mark.timing
def test_who_could_not_begin_in_strict_mode_can_in_the_next_cell(group: Session) -> None:
    group.recover()  # a new service: nobody knows where the others listen
    group.run(
        "from jaxnb.engine import agreement\n"
        "kept = agreement.Agreement._listen\n"
        "def fails(*_): raise OSError('no file can be opened')\n"
        "agreement.Agreement._listen = fails",
        check="off",  # a cell that is recorded has it listen already
    )
    with pytest.raises(CellError) as caught:
        group.run("float(total(x))", check="strict", timeout=30)
    assert {e.type_name for e in caught.value.result.errors.values()} == {"OSError"}
    group.run("agreement.Agreement._listen = kept", check="off")
    with no_alarm():
        assert group.run("float(total(x))", check="strict", timeout=30).divergence is None
    assert_usable(group)


@pytest.mark.timing
def test_strict_tells_of_one_that_raised_or_was_not_asked(group: Session) -> None:
    with pytest.raises(CellError) as caught:
        group.run("if process_index: raise ValueError('mine')\ntotal(x);", check="strict")
    errors = caught.value.result.errors
    assert errors[1].type_name == "ValueError"
    assert "raised ValueError at line 1" in errors[0].message
    with pytest.raises(CellError, match="was not asked to run the cell"):
        group.run("total(x);", ranks=[0], check="strict")
    assert_usable(group)


@pytest.mark.timing
def test_strict_waits_for_a_straggler_whatever_sockets_wait_for(group: Session) -> None:
    """A process's sockets are made by Python: what its user has set for all is not for ours."""
    group.run("import socket, time\nsocket.setdefaulttimeout(0.2)")
    try:
        group.recover()  # the connections are made anew
        code = "if process_index: time.sleep(1)\nfloat(total(x))"
        with no_alarm():
            assert group.run(code, check="strict").divergence is None
            assert group.run(code).divergence is None
    finally:
        group.run("socket.setdefaulttimeout(None)")
    group.recover()
    assert_usable(group)


@pytest.mark.timing
def test_many_agreements_leave_little_behind(group: Session) -> None:
    with no_alarm():
        group.run("for _ in range(700): y = step(x)", check="strict")
        group.run("step(x);", check="strict")
    left = group.run(
        "from jax._src import distributed\n"
        "len(distributed.global_state.client.key_value_dir_get('jaxnb/'))"
    ).value
    assert left <= 3 * group.num_processes


@pytest.mark.timing
def test_the_mode_of_a_session(make_session: Callable[..., Session]) -> None:
    strict = make_session(2, check="strict")
    strict.run(SETUP)
    with pytest.raises(CellError, match="DivergenceError"):
        strict.run("x * process_index;")
    with pytest.raises(UsageError, match=r"Unknown check 'strickt'.*'strict'"):
        strict.run("1", check="strickt")  # type: ignore[arg-type]
    with pytest.warns(DivergenceWarning):
        strict.run("x * process_index;", check="record")
    with no_alarm():
        strict.run("x * process_index;", check="off")
