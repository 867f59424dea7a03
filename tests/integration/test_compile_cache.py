"""A program is compiled once: by one process, and loaded by the others and by later groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jaxnb
from jaxnb.errors import CellError, ProcessDiedError
from jaxnb.session import Session
from support.fixtures import PATIENT_SECONDS

SETUP = """
import hashlib
from jax.sharding import AxisType, Mesh
D = jax.device_count()
mesh = jax.make_mesh((D,), ("d",), axis_types=(AxisType.Auto,))
rows = np.arange(D * 8 * 16, dtype=np.float32).reshape(D * 8, 16) / 37
def spread(array, mesh=mesh, axis="d"):
    return jax.make_array_from_callback(
        array.shape, NamedSharding(mesh, P(axis)), lambda index: array[index])
def on(devices, axis="d"):
    return Mesh(np.array(devices), (axis,))
def digest(values):
    found = hashlib.sha256()
    for each in jax.tree.leaves(values):
        if jax.dtypes.issubdtype(each.dtype, jax.dtypes.prng_key):
            each = jax.random.key_data(each)
        for shard in sorted(each.addressable_shards, key=lambda s: s.device.id):
            found.update(np.asarray(shard.data).tobytes())
    return found.hexdigest()
def summed(a):
    return jnp.tanh(a @ a.T).sum(0), a.mean()
def drawn(keys):
    return jax.random.normal(keys[0], (4,)), jax.random.split(keys[1])
def around(a):
    return jax.lax.ppermute(a, "d", [(i, (i + 1) % D) for i in range(D)]) + jax.lax.psum(a, "d")
half, here = jax.devices()[: D // 2], jax.local_devices()
programs = {
    "sharded": (jax.jit(summed), lambda: [spread(rows)]),
    "local": (jax.jit(lambda a: jnp.sin(a) @ jnp.cos(a).T), lambda: [rows + process_index]),
    "reversed mesh": (jax.jit(lambda a: a.T @ a), lambda: [spread(rows, on(jax.devices()[::-1]))]),
    "donated": (jax.jit(lambda a, b: (a + b, (a * b).sum()), donate_argnums=0),
                lambda: [spread(rows), spread(rows * 2)]),
    "keys": (jax.jit(drawn), lambda: [jax.random.split(jax.random.key(3), D)]),
    "ppermute": (jax.jit(jax.shard_map(around, mesh=mesh, in_specs=P("d"), out_specs=P("d"))),
                 lambda: [spread(rows)]),
}
if set(half) & set(here):
    programs["sub-mesh"] = jax.jit(lambda a: (a * 3).sum()), lambda: [spread(rows, on(half))]
"""
RUN = "{name: digest(f(*inputs())) for name, (f, inputs) in programs.items()}"
READ = """
from jaxnb.compat import jax_programs
def read(f, inputs):
    compiled = f.lower(*inputs()).compile()
    memory = compiled.memory_analysis()
    sizes = memory.temp_size_in_bytes, memory.argument_size_in_bytes, memory.alias_size_in_bytes
    return jax_programs.fingerprint(compiled), jax_programs.programs(compiled), sizes
{name: repr(read(*each)) for name, each in programs.items()}
"""
SMALL = """
mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
x = jax.make_array_from_callback((4, 4), NamedSharding(mesh, P("d")),
                                 lambda index: np.eye(4, dtype=np.float32)[index])
"""
F = "def f(a):\n    b = a @ a.T\n    return b.sum(0) + 1\nf = jax.jit(f)"

Make = Callable[..., Session]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A group with a cache of its own, which a test must leave usable."""
    folder = tmp_path_factory.mktemp("programs")
    with jaxnb.start(2, devices_per_process=2, platform="cpu", compile_cache=folder,
                     pitfalls=False) as session:  # fmt: skip
        yield session


def made(session: Session, code: str) -> tuple[list[Any], int, int]:
    """Returns a cell's values, how many programs were compiled, and how many were loaded."""
    found = session.run(code, timeout=PATIENT_SECONDS).per_process
    loads = sum(each.loads for each in found.values())
    values = [found[i].value for i in sorted(found)]
    return values, sum(each.compiles for each in found.values()) - loads, loads


def test_compiled_or_loaded_a_program_computes_and_tells_the_same(
    make_session: Make, tmp_path: Path
) -> None:
    found = []
    for folder in ("off", str(tmp_path), str(tmp_path)):
        session = make_session(2, devices_per_process=2, compile_cache=folder)
        session.run(SETUP)
        values, compiled, loaded = made(session, RUN)
        found.append((values, made(session, READ)[0], compiled, loaded))
        session.close()
    alone, once, later = found
    assert alone[0] == once[0] == later[0]
    assert alone[1] == once[1] == later[1]
    assert alone[2] > once[2] > 0 == later[2]
    assert alone[3] == 0 < once[3] < later[3]


def test_what_was_traced_before_changes_no_key(pair: Session) -> None:
    """JAX takes the lines of inner functions from where it has traced them first."""
    code = (
        "def init(k):\n    a, b = jax.random.split(k)\n"
        "    return jax.random.normal(a, (4,)) + jax.random.normal(b, (4,))\n"
        "jax.jit(init)(jax.random.key(0)).tolist()"
    )
    first, compiled, _ = made(pair, code)
    assert compiled
    for moved in ("", "\n\n"):
        assert made(pair, moved + code) == (first, 0, 2)
    pair.restart()
    assert made(pair, code)[:2] == (first, 0)


def test_lines_are_todays(make_session: Make, tmp_path: Path) -> None:
    def lines(session: Session) -> list[tuple[str, int]]:
        found = [each.source for each in session.collectives("f(x)")]
        return [(each.file, each.line) for each in found if each is not None]

    first = make_session(2, devices_per_process=2, compile_cache=tmp_path)
    first.run(SMALL)
    first.run(F)
    assert made(first, "f(x)")[1:] == (1, 1)
    assert lines(first) == [("<cell 2>", 2), ("<cell 2>", 3)]
    first.close()
    second = make_session(2, devices_per_process=2, compile_cache=tmp_path)
    second.run(SMALL)
    second.run("pass")
    second.run(f"# of another day\n\n{F}")
    assert made(second, "f(x)")[1:] == (0, 2)
    assert lines(second) == [("<cell 3>", 4), ("<cell 3>", 5)]
    second.run(f"\n{F.replace('1', 'process_index')}")
    with pytest.raises(CellError) as caught:
        second.run("f(x)")
    assert caught.value.result.divergence is not None
    assert "line 4 of cell [5]" in str(caught.value.result.divergence)


def test_a_damaged_entry_is_compiled_anew(make_session: Make, tmp_path: Path) -> None:
    session = make_session(2, devices_per_process=2, compile_cache=tmp_path)
    session.run(SMALL + F)
    whole, compiled, _ = made(session, "np.asarray(f(x).addressable_data(0)).tolist()")
    assert compiled
    for path in (tmp_path / "programs-1").iterdir():
        entry = path.read_bytes()
        path.write_bytes(entry[:-1] + b"\0")
    session.restart()
    session.run(SMALL + F)
    again, compiled, _ = made(session, "np.asarray(f(x).addressable_data(0)).tolist()")
    assert again == whole
    assert compiled
    session.restart()
    session.run(SMALL + F)
    assert made(session, "f(x)")[1] == 0


@pytest.mark.thorough
def test_restarts_recoveries_and_replaced_processes_compile_nothing_anew(
    make_session: Make, tmp_path: Path
) -> None:
    session = make_session(2, devices_per_process=2, compile_cache=tmp_path)
    session.run(SMALL + F)
    assert made(session, "f(x)")[1] == 1
    session.recover()
    assert made(session, "f(x)")[1] == 0
    session.restart()
    session.run(SMALL + F)
    assert made(session, "f(x)")[1] == 0
    with pytest.raises(ProcessDiedError):
        session.run("import os, signal\nif process_index: os.kill(os.getpid(), signal.SIGKILL)")
    session.recover()
    session.run(SMALL + F)
    assert made(session, "f(x)")[1] == 0


def test_where_nothing_can_be_written_each_compiles(make_session: Make, tmp_path: Path) -> None:
    session = make_session(2, devices_per_process=2, compile_cache=tmp_path)
    session.run(SMALL + F)
    session.run("import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (64, -1))")
    values, compiled, loaded = made(session, "np.asarray(f(x).addressable_data(0)).tolist()")
    assert values[0] == values[1]
    assert (compiled, loaded) == (2, 0)
    assert not list((tmp_path / "programs-1").glob("*-*"))


def test_an_error_of_the_compiler_is_each_processs_own(pair: Session) -> None:
    pair.run("wrong = jax.jit(lambda a: a + 1, compiler_options={'xla_no_such': 1})")
    for _ in range(2):
        with pytest.raises(CellError) as caught:
            pair.run("wrong(np.ones(3))")
        assert sorted(caught.value.result.errors) == [0, 1]


def test_programs_in_another_order_and_in_threads(pair: Session) -> None:
    pair.run(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def make(k):\n    return float(jax.jit(lambda a: (a * k).sum())(np.ones(8)))\n"
        "order = range(20) if process_index else range(19, -1, -1)"
    )
    values, compiled, loaded = made(pair, "sorted(make(k) for k in order)")
    assert values == [[8.0 * k for k in range(20)]] * 2
    assert compiled + loaded == 40
    values, *_ = made(
        pair,
        "with ThreadPoolExecutor(4) as pool:\n"
        "    found = sorted(pool.map(make, [*range(20, 30)] * 2))\nfound",
    )
    assert values == [sorted([8.0 * k for k in range(20, 30)] * 2)] * 2


def test_a_handler_compiles_what_its_own_thread_is_compiling(pair: Session) -> None:
    pair.run(
        "from jaxnb.launch import process_compiling\nimport signal\nfound = []\n"
        "def make():\n    return float(jax.jit(lambda a: (a * 31).sum())(np.ones(8)))\n"
        "def keep(executable, kept=process_compiling.serialized):\n"
        "    if not found:\n        found.append('due')\n"
        "        signal.raise_signal(signal.SIGALRM)\n"
        "    return kept(executable)\n"
        "signal.signal(signal.SIGALRM, lambda *_: found.append(make()))\n"
        "process_compiling.serialized = keep"
    )
    values, *_ = made(pair, "(make(), found[1:]) if process_index == 0 else None")
    assert values[0] == (248.0, [248.0])
    pair.restart()


CALLS_BACK = """
told = []
def own(a):
    return np.float32(a + process_index)
@jax.jit
def g(a):
    jax.debug.inspect_array_sharding(a, callback=told.append)
    return jax.pure_callback(own, jax.ShapeDtypeStruct((), "f4"), a)
"""


def test_programs_that_call_back_are_compiled_by_each(pair: Session) -> None:
    for _ in range(2):
        pair.run(CALLS_BACK)
        values, compiled, _ = made(pair, "float(g(np.float32(1))), len(told)")
        assert values == [(1.0, 1), (2.0, 1)]
        assert compiled >= 2
        pair.restart()


def test_where_the_users_cache_will_not_do_a_start_says_so(
    make_session: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAXNB_COMPILE_CACHE")
    (tmp_path / "jaxnb").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    session = make_session(2)
    (note,) = session.group.notes
    assert "Each process compiles its programs by itself" in note
    assert made(session, "float(jax.jit(lambda a: a + 1)(1.0))") == ([2.0, 2.0], 2, 0)
