"""What a cell does on four real processes, and what comes back."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import numpy as np
import psutil
import pytest

from integration.conftest import Gate
from jaxnb.arrays.gathered import GatheredArray
from jaxnb.cells.card_cell import footer_card
from jaxnb.cells.card_value import value_card
from jaxnb.cells.result import Agreement, CellResult
from jaxnb.errors import (
    CellError,
    JaxnbError,
    SessionClosedError,
    UsageError,
)
from jaxnb.session import Session
from support.fixtures import PATIENT_SECONDS, own_frames, until

pytestmark = pytest.mark.usefixtures("exact_labels")


ALL = [0, 1, 2, 3]

MESH = 'mesh = jax.make_mesh((4, 2), ("data", "model"))\n'
SHARDED = MESH + (
    'sharding = NamedSharding(mesh, P("data", "model"))\n'
    "x = jax.make_array_from_callback((8, 6), sharding,\n"
    "    lambda index: np.arange(48, dtype=np.float32).reshape(8, 6)[index])\n"
)


def fails(session: Session, code: str, **settings: Any) -> CellResult:
    """Runs a cell that must raise; returns its result."""
    with pytest.raises(CellError) as raised:
        session.run(code, **settings)
    return raised.value.result


def test_programs_that_join_processes_by_themselves_find_them_joined(
    shared_session: Session,
) -> None:
    code = "jax.distributed.initialize(%s)\njax.distributed.is_initialized(), jax.process_count()"
    assert shared_session.run(code % "").value == (True, 4)
    assert shared_session.run(code % "'localhost:1234', 4, jax.process_index()").value == (True, 4)
    result = fails(shared_session, code % "'localhost:1234', 2, 0")
    assert "but this is process 1 of 4, and jaxnb has joined them" in str(result.errors[1])
    assert shared_session.run("import sys\nsys.argv").value == sys.argv


# ---------------------------------------------------------------------- values


def test_a_replicated_array_comes_whole_and_once(session: Session) -> None:
    result = session.run(SHARDED + "jax.jit(lambda x: x.sum(0), out_shardings="
                         "NamedSharding(mesh, P()))(x)")  # fmt: skip
    assert result.agreement is Agreement.SAME
    np.testing.assert_array_equal(result.value, np.arange(48).reshape(8, 6).sum(0))
    assert result.array is not None
    assert result.array.fully_replicated
    assert len({shard.digest for shard in result.array.shards}) == 1
    assert all(shard.digest for shard in result.array.shards)
    assert "not sharded" not in value_card(result).text
    own = session.run("jnp.ones(6)")
    assert value_card(own).text.endswith("(byte-compared) · a copy on each process, not sharded")
    assert "not sharded" not in value_card(session.run("jnp.ones(6)", ranks=[0])).text


def test_arrays_inside_containers(session: Session) -> None:
    result = session.run(
        SHARDED + "{'local': jnp.ones(2), 'whole': jax.device_put(3.0), 'far': x, 'n': [1]}"
    )
    assert result.agreement is Agreement.SAME
    assert set(result.value) == {"local", "whole", "far", "n"}
    assert isinstance(result.value["far"], GatheredArray)
    np.testing.assert_array_equal(result.value["far"], np.arange(48.0).reshape(8, 6))
    text = " ".join(value_card(result).text.split())
    assert "compared by layout, the rest by bytes" in text
    assert "byte-compared" not in text
    for one in (r.value for r in result.per_process.values()):
        np.testing.assert_array_equal(one["local"], [1.0, 1.0])
        assert type(one["local"]) is np.ndarray
        assert one["whole"] == 3.0
        assert isinstance(one["far"], GatheredArray)
        assert one["far"].shape == (8, 6)
        assert one["n"] == [1]


def test_a_value_that_holds_itself(session: Session) -> None:
    code = "tree = {'w': jnp.ones(2), 'n': [1]}\ntree['child'] = {'parent': tree}\ntree"
    result = session.run(code)
    assert result.agreement is Agreement.SAME
    assert result.value["child"]["parent"] is result.value
    assert session.run("tree['n'].append(tree['n']); tree['n']").value[0] == 1
    code = "class Node:\n    def __init__(self, child): self.child = child\n"
    code += "jax.tree_util.register_pytree_node(Node, lambda n: ((n.child,), None), print)\n"
    session.run(f"{code}node = Node(1)\nnode.child = node\nnode;")
    session.run("node")
    assert session.run("process_index * 2").value[3] == 6


def test_large_values_are_compared_at_once_and_fetched_on_access(session: Session) -> None:
    result = session.run("np.arange(1 << 18, dtype=np.float64)")  # 2 MiB
    infos = [r.value_info for r in result.per_process.values()]
    assert all(info is not None and info.payload is None and info.digest for info in infos)
    assert result.agreement is Agreement.SAME
    np.testing.assert_array_equal(result.value, np.arange(1 << 18))


def test_a_large_value_lives_as_long_as_out_has_it(session: Session) -> None:
    """Else neither `del` nor `%reset out` would free memory, and recoveries would carry it."""
    code = "import gc, weakref\nw = np.zeros(1 << 18)\nref = weakref.ref(w)\nw"
    results = [session.run(code)]
    results += [session.run(f"np.full(1 << 18, {n})") for n in range(17)]
    assert [int(each.value[0]) for each in results] == [0, *range(17)]
    session.run("del w\n%reset -f out")
    # IPython binds `_` never again: for the tests that follow.
    session.run("get_ipython().push(dict.fromkeys(('_', '__', '___'), ''), interactive=False)")
    assert session.run("gc.collect(); ref() is None").value
    gone = r"value of cell \[\d+\] on process 0 .*no longer holds it: `Out` has another"
    again = session.run("np.zeros(1 << 18)")
    session.run("Out.clear()")
    with pytest.raises(JaxnbError, match=gone):
        _ = again.value


def test_large_values_of_one_number_are_told_apart(session: Session) -> None:
    first = session.run("np.full(1 << 18, 1)", cell=900)
    second = session.run("np.full(1 << 18, 2)", cell=900)
    with pytest.raises(JaxnbError, match="no longer holds it"):
        _ = first.value
    assert int(second.value[0]) == 2
    session.run("Out[900][3] = 1")
    changed = session.run("Out[900]", cell=901)
    session.run("Out[900][4] = 1")
    with pytest.raises(JaxnbError, match=r"was changed on process 0 since the cell ran"):
        _ = changed.value
    third = session.run("np.full((65 << 20) // 8, 3)", ranks=[0], cell=900)  # without a digest
    session.run("4", ranks=[0], cell=900)
    with pytest.raises(JaxnbError, match="no longer holds it"):
        _ = third.value


def test_huge_values_are_not_compared_and_say_so(session: Session) -> None:
    result = session.run("np.zeros((65 << 20) // 8)", ranks=[0, 1])
    assert result.agreement is Agreement.UNCOMPARED
    assert "too large to be compared (over 64 MiB)" in value_card(result).text
    assert result.value[1].nbytes == 65 << 20


@pytest.mark.parametrize(
    ("code", "kind"),
    [("(i for i in range(3))", "generator"), ("jax.jit(jnp.sum)", "PjitFunction"),
     ("class Odd:\n    def __reduce__(self): raise OSError('no')\nOdd()", "Odd")],
)  # fmt: skip
def test_values_that_cannot_travel(session: Session, code: str, kind: str) -> None:
    result = session.run(code)
    assert result.agreement is Agreement.UNCOMPARED
    with pytest.raises(JaxnbError, match=f"process 0.*{kind}.*cannot be pickled"):
        _ = result.value
    assert session.run("'use it: ' + type(_).__name__").value == f"use it: {kind}"


@pytest.mark.parametrize("last", ["[f]", "{1: Mine()}", "functools.lru_cache(f)", "jax.jit(f)"])
def test_code_of_a_cell_is_not_compared_by_its_name(session: Session, last: str) -> None:
    result = session.run(
        "import functools\ndef make(n):\n    def f(*a): return n\n    return f\n"
        f"class Mine: n = process_index\nf = make(process_index); f.__qualname__ = 'f'\n{last}"
    )
    assert result.agreement is Agreement.UNCOMPARED
    with pytest.raises(JaxnbError, match="cannot be pickled"):
        _ = result.value


@pytest.mark.parametrize(
    ("code", "agreement"),
    [
        ("process_index", Agreement.DIFFERENT),
        ("process_index or None", Agreement.DIFFERENT),
        ("1 if process_index else 1.0", Agreement.DIFFERENT),
        ("True if process_index else 1", Agreement.DIFFERENT),
        ("np.float32(1) if process_index else np.float64(1)", Agreement.DIFFERENT),
        ("-0.0 if process_index else 0.0", Agreement.DIFFERENT),
        ("float('nan')", Agreement.SAME),
        ("jnp.array([0.0, jnp.nan])", Agreement.SAME),
        ("object", Agreement.SAME),
    ],
)
def test_agreement(session: Session, code: str, agreement: Agreement) -> None:
    assert session.run(code).agreement is agreement


# ---------------------------------------------------------------------- as IPython does


def test_magics(session: Session) -> None:
    cell = session.run("%%time\nz = 5\nz")
    assert cell.value == 5
    assert "Wall time" in cell.per_process[3].stdout
    assert session.run("%%capture captured\nprint('hidden')").stdout == ""
    assert session.run("captured.stdout").value == "hidden\n"


def test_shell_commands(session: Session) -> None:
    result = session.run("!echo hello && echo err >&2")
    assert result.stdout.splitlines()[0] == "[0-3] hello"
    assert "Warning" not in result.stdout + result.stderr
    listed = session.run("lines = !printf 'a\\nb\\n'\nlist(lines)")
    assert listed.value == ["a", "b"]
    assert session.run("!exit 3\n_exit_code").value == 3


def test_a_background_command_does_not_hold_the_cell(session: Session, gate: Gate) -> None:
    background = f"(: < {gate.path}; echo later) &"
    result = session.run(f"!{background} echo at once", timeout=PATIENT_SECONDS)
    assert result.stdout == "[0-3] at once\n"
    assert session.run(f"!{background} exit 3\n_exit_code", timeout=PATIENT_SECONDS).value == 3
    gate.open()
    written: list[str] = []

    def has_come() -> bool:
        written.append(session.run("").stdout.replace("\n", ""))
        return "".join(written).count("later") >= 2

    until(has_come, "what the commands write later")


def test_top_level_await(session: Session) -> None:
    result = session.run("import asyncio\nawait asyncio.sleep(0, 'awaited')")
    assert result.value == "awaited"
    assert fails(session, "import asyncio\nawait asyncio.sleep(0)\n1/0").errors[0].line == 3


def test_input_raises_and_does_not_hang(session: Session) -> None:
    result = fails(session, "input('name? ')", timeout=PATIENT_SECONDS)
    assert {error.type_name for error in result.errors.values()} == {"StdinNotImplementedError"}
    assert "%spmd_push" in result.errors[0].message


def test_exit_does_not_end_the_process(session: Session) -> None:
    pids = {each.process_index: each.pid for each in session.processes}
    for code in ("exit()", "quit", "exit", "def f(): quit()\nf()"):
        result = session.run(code)
        assert result.stdout == "[0-3] exit() ends no process of the group; type %spmd_stop\n"
        assert session.run("import os; os.getpid()").value == pids
    result = session.run("raise SystemExit", raise_on_error=False)
    assert (result.stderr, len(result.errors)) == ("", 4)


# ---------------------------------------------------------------------- text


def test_streams_are_kept_apart_and_attributed(session: Session) -> None:
    result = session.run(
        "import sys\nprint('out', process_index)\nprint('err', file=sys.stderr)\nprint('out 2')"
    )
    for index in ALL:
        one = result.per_process[index]
        assert one.stdout == f"out {index}\nout 2\n"
        assert one.stderr == "err\n"
    assert result.stderr == "[0-3] err\n"
    assert sorted(result.stdout.splitlines()) == [
        "[0-3] out 2",
        *(f"[{i}] out {i}" for i in ALL),
    ]


# ---------------------------------------------------------------------- errors


def test_one_process_raises(session: Session) -> None:
    with pytest.raises(CellError) as raised:
        session.run("print('hi')\nif process_index == 1:\n    raise ValueError('boom')\n9")
    result = raised.value.result
    assert list(result.errors) == [1]
    assert str(result.errors[1]) == "ValueError: boom"
    assert result.errors[1].line == 3
    assert "raise ValueError('boom')" in result.errors[1].traceback
    assert result.stdout == "[0-3] hi\n"
    assert [result.per_process[i].value for i in ALL] == [9, None, 9, 9]
    assert (
        str(raised.value) == f"process 1 raised ValueError: boom at line 3 (cell [{result.cell}])"
    )
    assert session.state == "ready"


def test_all_raise_the_same(session: Session) -> None:
    with pytest.raises(CellError, match="processes 0-3 raised") as raised:
        session.run("def f():\n    1 / 0\nf()")
    tracebacks = {error.traceback for error in raised.value.result.errors.values()}
    assert len(tracebacks) == 1
    shown = "\n".join(raised.value._render_traceback_())
    assert shown.count("ZeroDivisionError: division by zero") <= 2  # once, and in the message
    assert own_frames(tracebacks.pop()) == []


def test_syntax_error_runs_nothing(session: Session) -> None:
    session.run("ran = False")
    result = fails(session, "ran = True\nprint('ran')\n)(")
    assert {error.type_name for error in result.errors.values()} == {"SyntaxError"}
    assert {error.line for error in result.errors.values()} == {3}
    assert result.stdout == ""
    assert session.run("ran").value is False
    assert len({error.traceback for error in result.errors.values()}) == 1


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise ValueError(42)", "ValueError: 42"),
        ("raise UnicodeError('ü\\nsecond line')", "UnicodeError: ü\nsecond line"),
        ("raise ExceptionGroup('two', [ValueError(1), KeyError(2)])",
         "ExceptionGroup: two (2 sub-exceptions)"),
        ("%nosuch", "UsageError: Line magic function `%nosuch` not found."),
    ],
)  # fmt: skip
def test_every_kind_of_exception_fails_the_cell(session: Session, code: str, error: str) -> None:
    result = fails(session, code)
    assert {str(e) for e in result.errors.values()} == {error}
    assert sorted(result.errors) == ALL
    assert result.stderr == ""  # it is shown once
    assert "IPython" not in (traceback := result.errors[0].traceback)
    assert own_frames(traceback) == []


def test_a_huge_message(session: Session) -> None:
    result = fails(session, "raise ValueError('x' * 1_000_000)")
    message = result.errors[0].message
    assert len(message) < 250_000
    assert message.endswith("of 1 000 000 characters not shown")


def test_what_cannot_be_shown(session: Session) -> None:
    bad = "class Bad(Exception):\n    def {}(self): raise OSError('no')\n"
    for method in ("__str__", "__repr__"):
        result = fails(session, f"{bad.format(method)}raise Bad(1)")
        assert {(e.type_name, e.line) for e in result.errors.values()} == {("Bad", 3)}
    result = fails(session, f"{bad.format('__repr__')}Bad(1)")
    assert (str(result.errors[0]), result.errors[0].line) == ("OSError: no", 2)
    loop = "a, b = ValueError('a'), ValueError('b'); a.__context__ = b; b.__context__ = a; raise a"
    assert sorted(fails(session, loop, timeout=PATIENT_SECONDS).errors) == ALL
    assert session.run("1").value == 1


@pytest.mark.parametrize(
    ("code", "first_line", "line"),
    [("a = 1\n\n1/0", 1, 3), ("a = 1\n\n1/0", 2, 4), ("\n\n1/0", 2, 4)],
)
def test_lines_count_as_the_notebook_counts(
    session: Session, code: str, first_line: int, line: int
) -> None:
    result = fails(session, code, first_line=first_line)
    assert {error.line for error in result.errors.values()} == {line}


# ---------------------------------------------------------------------- ranks and time


def test_ranks(session: Session) -> None:
    result = session.run("mark = 1; process_index", ranks=[3, 1, 1])
    assert result.value == {1: 1, 3: 3}
    assert result.num_processes == 4
    assert session.run("process_index", ranks=[2]).value == 2
    assert session.run("'mark' in globals()").value == {0: False, 1: True, 2: False, 3: True}


@pytest.mark.parametrize("ranks", [[9], [-1], [0, 4], []])
def test_ranks_that_there_are_not(session: Session, ranks: list[int]) -> None:
    with pytest.raises(UsageError, match=r"the group has processes 0 to 3. Nothing was run."):
        session.run("1", ranks=ranks)


def test_seconds_and_compilations(session: Session) -> None:
    code = "f = jax.jit(lambda x: jnp.sin(x) * 3.25 + process_index)\nf(jnp.ones(5)); 0"
    first = session.run(code)
    again = session.run("f(jnp.ones(5)); 0")
    for index in ALL:
        one = first.per_process[index]
        assert one.compiles >= 1
        assert 0 < one.compile_seconds <= one.seconds <= first.seconds
        assert again.per_process[index].compiles == 0
        assert again.per_process[index].compile_seconds == 0.0


# ---------------------------------------------------------------------- the session


def test_state_processes_and_group(session: Session) -> None:
    assert session.state == "ready"
    assert session.num_processes == 4
    processes = session.processes
    assert [p.process_index for p in processes] == ALL
    assert {p.state for p in processes} == {"ready"}
    assert all(psutil.pid_exists(p.pid) for p in processes)
    assert len({p.engine_id for p in processes}) == 4
    assert [d.process_index for p in processes for d in p.devices] == [0, 0, 1, 1, 2, 2, 3, 3]
    ran = session.run("1", cell=77)
    group = session.group
    assert ran.cell == 77
    assert group.last_cell == 77
    assert (group.platform, group.launcher, group.collectives) == ("cpu", "fork", "gloo")
    assert group.jax_version == session.run("jax.__version__").value
    assert session.group.cells_run == group.cells_run + 1
    assert group.start_seconds > 0
    assert repr(session) == "<jaxnb.Session: 4 cpu processes, ready>"


def test_busy_while_a_cell_runs(session: Session, tmp_path: Any) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    thread = threading.Thread(
        target=session.run, args=(f"open('{gate}').read();",), kwargs={"ranks": [2]}
    )
    thread.start()
    with open(gate, "w"):  # opens once process 2 has opened it too
        assert session.state == "busy"
        assert [p.state for p in session.processes] == ["ready", "ready", "busy", "ready"]
    thread.join(PATIENT_SECONDS)
    assert session.state == "ready"


DRAW = """
import random, secrets, uuid
drawn = dict(
    numpy=np.random.random(),
    random_state=np.random.RandomState().random(),
    default_rng=np.random.default_rng().random(),
    python=random.random(),
    uuid=uuid.uuid4().hex,
    secrets=secrets.token_hex(),
)
drawn
"""


def test_new_processes_draw_numbers_of_their_own_unless_they_are_seeded(
    make_session: Any,
) -> None:
    session = make_session(2)
    drawn = list(session.run(DRAW).value.values())
    seeded = "np.random.seed(0); random.seed(0); np.random.random(), random.random()"
    equal = session.run(seeded).value
    os.kill(session.processes[1].pid, signal.SIGKILL)
    assert session.recover().died == (1,)
    drawn.append(session.run(DRAW, ranks=[1]).value)
    before, stages = session.processes, list[str]()
    session.restart(lambda stage, detail: stages.append(stage))
    after = session.processes
    assert (stages[0], stages[-1]) == ("stopping", "checking")
    assert {p.pid for p in before}.isdisjoint({p.pid for p in after})
    assert {p.engine_id for p in before}.isdisjoint({p.engine_id for p in after})
    assert not any(psutil.pid_exists(p.pid) for p in before)
    assert session.run("'drawn' in globals()").value is False
    drawn += session.run(DRAW).value.values()
    for name in drawn[0]:
        assert len({each[name] for each in drawn}) == 5, name
    assert session.run(seeded).value == equal


def test_closing(make_session: Any) -> None:
    with make_session(1) as session:
        result = session.run("np.zeros(1 << 18)")
        pids = [p.pid for p in session.processes]
    assert session.state == "closed"
    assert not any(psutil.pid_exists(pid) for pid in pids)
    session.close()
    for use in (
        lambda: session.run("1"),
        session.stats,
        session.restart,
    ):
        with pytest.raises(SessionClosedError, match=r"was closed. Type `%spmd_start`"):
            use()
    with pytest.raises(JaxnbError):
        _ = result.value  # was never fetched
    assert [p.state for p in session.processes] == ["dead"]
    assert session.group.state == "closed"
    session.interrupt()
    assert repr(session) == "<jaxnb.Session: 1 cpu processes, closed>"


def test_the_footer_says_what_is_still_computed(session: Session) -> None:
    slow = "jax.jit(lambda a: jax.lax.fori_loop(0, 300, lambda _, a: a @ a, a))"
    session.run("a = jnp.eye(600)", ranks=[0])
    result = session.run(f"y = {slow}(a)", ranks=[0])
    assert footer_card(result).text.endswith(" · devices still computing")
    result = session.run("y.block_until_ready();", ranks=[0])
    assert "still computing" not in footer_card(result).text
