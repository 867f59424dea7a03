"""What calls compile to, on a group of 4 processes × 2 devices, and planned for more."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path

import psutil
import pytest

import jaxnb
from jaxnb.compiled.compiling import Collectives
from jaxnb.errors import JaxnbError, NotCompiledError, UsageError
from jaxnb.model.compiled import Collective
from jaxnb.session import Session
from support.fixtures import PATIENT_SECONDS, interrupt_when_read
from support.programs import COMMON, PROGRAMS, Program


@pytest.fixture
def programs(session: Session) -> Session:
    """The group, with what all programs use."""
    session.run(COMMON)
    return session


def result(each: Collective) -> str:
    first, count = each.parts[0], len(each.parts)
    return f"{count} × {first}" if count > 1 else str(first)


def facts(found: Iterable[Collective]) -> list[tuple[object, ...]]:
    rows = [
        (each.kind, each.axes, each.group_size, result(each), each.bytes, each.count)
        for each in found
    ]
    return sorted(rows, key=repr)


def well_formed(html: str) -> bool:
    """Whether every element is closed, in order."""
    open_tags: list[str] = []

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag != "br":
                open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    Parser().feed(html)
    return not open_tags


def require_readable(found: Collectives) -> None:
    """The cards fit a terminal, and their HTML is well-formed."""
    for text in (str(found), str(found.picture())):
        assert max(map(len, text.splitlines())) <= 80, text
    assert well_formed(found._repr_mimebundle_()["text/html"])
    assert well_formed(found.picture().html)


# ---------------------------------------------------------------------- the six programs


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_compiles_to_what_was_computed_by_hand(programs: Session, name: str) -> None:
    program: Program = PROGRAMS[name]
    programs.run(program.setup)
    found = programs.collectives(program.call)
    assert facts(found) == sorted((row.facts for row in program.rows), key=repr)
    assert sum(total.bytes for total in found.totals) == sum(
        row.bytes * row.count for row in program.rows
    )
    assert found.matrix().sum(axis=1).max() == sum(total.bytes for total in found.totals)
    assert found.num_devices == 8
    assert found.memory is not None
    assert found.memory.argument_bytes > 0
    assert found.flops
    for each in found:
        assert each.whole_axes
        assert each.source is not None
        assert str(each.source).startswith("cell [")
        line = program.setup.splitlines()[each.source.line - 1]
        assert any(word in line for word in ("all_", "ppermute", "@", "grad"))
    require_readable(found)


def test_nothing_is_run_and_nothing_donated(programs: Session) -> None:
    programs.run("""
mesh = jax.make_mesh((8,), ("x",), axis_types=(Auto,))
x = jax.make_array_from_callback((8,), NamedSharding(mesh, P("x")), lambda i: np.arange(8.0)[i])
ran = []
f = jax.jit(lambda x: (jax.debug.callback(lambda: ran.append(1)), x - x.mean())[1],
            donate_argnums=0)
""")
    found = programs.collectives("f(x)")
    assert [each.kind for each in found] == ["all-reduce"]
    assert found.memory is not None
    assert found.memory.alias_bytes == 4
    assert programs.run("(len(ran), x.is_deleted())").value == (0, False)
    assert "(4 B donated)" in str(found)


def test_a_mesh_as_an_argument_stays_what_it_is(programs: Session) -> None:
    programs.run("""
mesh = jax.make_mesh((8,), ("x",), axis_types=(Auto,))
def gathered(mesh, x, axis):
    return jax.lax.with_sharding_constraint(x.sum(axis), NamedSharding(mesh, P()))
""")
    found = programs.collectives("gathered(mesh, abstract(mesh, (8, 8), 'x'), axis=1)")
    assert [(each.kind, each.shape) for each in found] == [("all-gather", (8,))]


def test_loops_conditionals_and_parts_of_axes(programs: Session) -> None:
    """Known trip counts multiply, also nested; unknown ones and branches are said to be so."""
    programs.run("""
mesh = jax.make_mesh((8,), ("x",), axis_types=(Auto,))
halves = [[0, 1, 2, 3], [4, 5, 6, 7]]
@partial(jax.shard_map, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"), check_vma=False)
def f(x, n):
    turn = lambda x, axis="x": jax.lax.ppermute(x, axis, [(0, 1), (1, 0)])
    inner = lambda _, x: jax.lax.fori_loop(0, 3, lambda _, x: turn(x), x)
    x = jax.lax.fori_loop(0, 5, inner, x)
    x = jax.lax.fori_loop(0, n, lambda _, x: x + jax.lax.psum(x, "x"), x)
    x = jax.lax.cond(n > 3, lambda x: jax.lax.all_gather(x, "x").sum(0), lambda x: x, x)
    return x + jax.lax.psum_scatter(jnp.concatenate([x] * 4), "x", tiled=True,
                                    axis_index_groups=halves)
""")
    found = programs.collectives(
        "f(abstract(mesh, (32,), 'x'), abstract(mesh, (), dtype=np.int32))"
    )
    by_kind = {each.kind: each for each in found}
    assert len(by_kind) == len(found) == 4
    assert by_kind["collective-permute"].count == 15
    assert by_kind["collective-permute"].group_size == 2
    assert by_kind["all-reduce"].count is None
    assert by_kind["all-reduce"].total_bytes is None
    assert by_kind["all-gather"].count == 1
    assert by_kind["all-gather"].at_most
    scatter = by_kind["reduce-scatter"]
    assert (scatter.axes, scatter.whole_axes, scatter.group_size) == (("x",), False, 4)
    assert scatter.bytes == 3 * 4 * 4  # 4 float32 on each device, 3 other ones
    (total,) = found.totals
    assert total.at_least
    assert total.at_most
    text = str(found)
    for said in ("?", "≤ 1", "x (part)", "≥ ", "XLA counts the body"):
        assert said in text
    require_readable(found)


def test_a_sum_of_which_each_device_uses_its_part_is_told_as_a_reduce_scatter(
    programs: Session,
) -> None:
    """As XLA sends it on GPUs and TPUs; and a gathered argument is named."""
    programs.run("""
mesh = jax.make_mesh((8,), ("x",), axis_types=(Auto,))
def loss(params, x): return jnp.sum(jnp.tanh(x @ params["w"]) ** 2)
def fsdp(params, x): return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params, x))
mapped = partial(jax.shard_map, mesh=mesh, in_specs=P(None, "x"), check_vma=False)
@partial(mapped, out_specs=P("x"))
def own(x):
    return jax.lax.dynamic_slice_in_dim(jax.lax.psum(x, "x"), 8 * jax.lax.axis_index("x"), 8)
@partial(mapped, out_specs=P("x"))
def pairs(x):  # two devices take the same
    i = jax.lax.axis_index("x") // 2 * 8
    return jax.lax.dynamic_slice_in_dim(jax.lax.psum(x, "x"), i, 8)
grid = jax.make_mesh((2, 4), ("a", "b"), axis_types=(Auto,) * 2)
def bias(axis): return jax.jit(lambda g: g.sum(0), out_shardings=NamedSharding(grid, P(axis)))
g = abstract(grid, (64, 64), "b")
@partial(mapped, out_specs=P())
def same(x): return jax.lax.dynamic_slice_in_dim(jax.lax.psum(x, "x"), 8, 8)
@partial(mapped, out_specs=P())
def counted(x):
    part = lambda k: jax.lax.dynamic_slice_in_dim(jax.lax.psum(x * k, "x"), 8 * k, 8)
    return jax.lax.fori_loop(0, 3, lambda k, y: y + part(k), jnp.zeros((8, 2)))
def layers(ws, x):
    layer = lambda x, w: (jnp.tanh(x @ jax.lax.with_sharding_constraint(w, whole)), None)
    return jnp.sum(jax.lax.scan(layer, x, ws)[0].astype(jnp.float32) ** 2)
whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P(None, "x"))
scanned = jax.jit(jax.grad(layers), out_shardings=split)
half = partial(abstract, mesh, dtype=jnp.bfloat16)
params, batch = {"w": abstract(mesh, (64, 256), "x")}, abstract(mesh, (512, 64), "x")
x = abstract(mesh, (64, 16), None, "x")
""")
    gather, reduce = found = programs.collectives("fsdp(params, batch)")
    assert (gather.kind, gather.argument) == ("all-gather", "params['w']")
    assert (reduce.kind, reduce.argument) == ("all-reduce", "")
    assert gather.bytes == gather.scatter_bytes == reduce.scatter_bytes == 7 * 64 * 256 * 4 // 8
    assert reduce.bytes == 2 * reduce.scatter_bytes
    (total,) = found.totals
    assert (total.bytes, total.scatter_bytes) == (3 * gather.bytes, 2 * gather.bytes)
    for said in ("112 KiB   56.0 KiB", "params['w']", "x  168 KiB  as reduce-scatter 112 KiB"):
        assert said in str(found), str(found)
    compared = programs.compare("fsdp(params, batch)", specs={"fsdp": "P('x')"}, run=False)
    assert compared["fsdp"].scatter_bytes == total.scatter_bytes
    assert [each.scatter_bytes for each in programs.collectives("own(x)")] == [7 * 8 * 2 * 4]
    for axis, part in (("a", 1), ("b", 2)):  # all of a group take the same of the sum over b
        (reduce,) = programs.collectives(f"bias('{axis}')(g)")
        assert (reduce.axes, reduce.bytes // reduce.scatter_bytes) == (("b",), part)
    for call in ("same(x)", "counted(x)", "pairs(x)"):
        assert [each.scatter_bytes for each in programs.collectives(call)] == [2 * 7 * 8 * 2 * 4]
    scanned = programs.collectives("scanned(half((3, 64, 64), None, 'x'), half((512, 64), 'x'))")
    (reduce,) = (each for each in scanned if each.kind == "all-reduce")
    assert (reduce.count, reduce.bytes) == (3, 2 * reduce.scatter_bytes)


def test_a_reversed_mesh(programs: Session) -> None:
    """Numbers in a program are places in its device assignment, not ids of devices."""
    programs.run("""
devices = np.array(jax.devices()).reshape(4, 2).T[::-1]
mesh = jax.sharding.Mesh(devices, ("a", "b"))
@partial(jax.shard_map, mesh=mesh, in_specs=P("a", "b"), out_specs=P(None, "b"))
def f(x): return jax.lax.psum(x, "a")
@partial(jax.shard_map, mesh=mesh, in_specs=P("a", "b"), out_specs=P("a", None))
def g(x): return jax.lax.psum(x, "b")
x = abstract(mesh, (8, 8), "a", "b")
bare = jax.ShapeDtypeStruct((8, 8), jnp.float32)
""")
    for x in ("x", "bare"):
        assert [each.axes for each in programs.collectives(f"f({x})")] == [("a",)]
        assert [each.axes for each in programs.collectives(f"g({x})")] == [("b",)]


def test_an_interrupt_ends_it_and_the_group_goes_on(session: Session, tmp_path: Path) -> None:
    with interrupt_when_read(tmp_path / "fifo") as read:  # when a process traces f
        session.run(f"def f(x):\n    {read}\n    return x")
        with pytest.raises(KeyboardInterrupt):
            session.collectives("f(3)")
    assert session.run("jax.device_count()").value == 8


# ---------------------------------------------------------------------- what cannot be compiled


def shown(error: NotCompiledError) -> str:
    return "\n".join(error._render_traceback_())


def test_what_does_not_lower_shows_the_line_of_the_cell(programs: Session) -> None:
    programs.run("def f(x):\n    y = x + 1\n    return y @ jnp.ones((7, 7))", cell=41, first_line=2)
    with pytest.raises(NotCompiledError) as caught:
        programs.collectives("f(jax.ShapeDtypeStruct((3, 4), np.float32))")
    text = shown(caught.value)
    assert 'File "<cell 41>", line 4, in f\n    return y @' in text
    assert "jax/_src" not in text
    assert "JAX could not trace it. It was not run. TypeError: " in text
    with pytest.raises(NotCompiledError, match="could not be evaluated") as caught:
        programs.collectives("nothing(3)")
    assert "NameError: name 'nothing' is not defined" in str(caught.value)
    programs.run("number = 3")
    with pytest.raises(NotCompiledError, match="`number` is of type int, and cannot be called"):
        programs.collectives("number(3)")


def test_processes_that_compile_different_programs_are_named(programs: Session) -> None:
    programs.run("mesh = jax.make_mesh((8,), ('x',))\nk = 1 + (process_index > 1)\n"
                 "g = jax.jit(lambda x: x * k)")  # fmt: skip
    with pytest.raises(JaxnbError, match=r"different programs .* processes 0-1 ≠ processes 2-3"):
        programs.collectives("g(abstract(mesh, (8,), 'x'))")
    programs.run("if process_index == 2: del g")
    with pytest.raises(NotCompiledError, match="on process 2; processes 0-1,3 compiled it"):
        programs.collectives("g(abstract(mesh, (8,), 'x'))")
    assert programs.run("jax.device_count()").value == 8


# ---------------------------------------------------------------------- plans

MESH_16 = """
mesh = jax.make_mesh((16, 16), ("data", "model"), axis_types=(Auto, Auto))
print("made", mesh.shape)
x = abstract(mesh, (4096, 512), "data", None)
w1, w2 = abstract(mesh, (512, 2048), None, "model"), abstract(mesh, (2048, 512), "model", None)
mlp(x, w1, w2)
"""


def test_a_plan_for_256_devices_takes_definitions_of_cells_along(
    programs: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    programs.run(
        "SCALE = 2\ndef half(x): return x / SCALE\n%time\nmesh = jax.make_mesh((8,), ('x',))"
    )
    programs.run("def mlp(x, w1, w2): return half(jnp.tanh(x @ w1)) @ w2", cell=52, first_line=2)
    programs.run("mlp = jax.jit(mlp)")
    found = programs.collectives(MESH_16, devices=256)
    # 256 rows of 512 float32 on each device, summed by 16 of them.
    bytes_sent = 2 * 15 * 256 * 512 * 4 // 16
    assert facts(found) == [
        ("all-reduce", ("model",), 16, "float32[256, 512]", bytes_sent, 1),
    ]
    assert found.num_devices == 256
    assert str(found[0].source) == "cell [52] line 2"
    assert capsys.readouterr().out.startswith("made OrderedDict")
    assert "planned for 256 devices · mesh data 16 × model 16" in str(found)
    require_readable(found)


def test_a_plan_has_meshes_of_its_own_in_place_of_the_groups(programs: Session) -> None:
    code = """mesh = jax.make_mesh((8,), ("x",))
@partial(jax.shard_map, mesh=mesh, in_specs=P("x"), out_specs=P())
def f(x): return jax.lax.psum(x, "x")
"""
    programs.run(code, cell=53)
    rows = [("all-reduce", ("x",), 32, "float32[1]", 8, 1)]  # 2 × 31/32 × 4
    found = programs.collectives("f(abstract(mesh, (32,), 'x'))", devices=32)
    assert facts(found) == rows
    # A mesh as jax.make_mesh makes it by default: with explicit axes.
    code = "mesh = jax.make_mesh((32,), ('x',))\nf(abstract(mesh, (32,), 'x'))"
    found = programs.collectives(code, devices=32)
    assert facts(found) == rows


@pytest.mark.parametrize(
    ("code", "devices", "kind", "said"),
    [
        ("f(x)", 0, UsageError, "from 1 to 2048, not 0"),
        ("f(x)", True, UsageError, "must be a whole number, not True"),
        ("x = 3", 8, UsageError, "has to be the call to compile"),
        ("%time\nf(x)", 8, UsageError, "The plan is not valid Python at line 1"),
        ("nothing(3)", 8, NotCompiledError, "other variables have to be made in the plan"),
        ("exit()\nf(x)", 8, NotCompiledError, "the code before it raised for 8 devices"),
        ("import os\nos._exit(3)\nf(x)", 8, JaxnbError, "ended with status 3 before it answered"),
    ],
)
def test_a_plan_that_cannot_be_made(
    code: str, devices: int, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind) as caught:
        jaxnb.plan(code, devices=devices)
    assert said in str(caught.value)


def test_a_scratch_process_ends_with_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    setup = f"open({str(path)!r}).read()"
    code = f"import jaxnb; jaxnb.plan('f(3)', setup={setup!r}, devices=2)"
    owner = subprocess.Popen([sys.executable, "-c", code])
    writer = os.open(path, os.O_WRONLY)  # returns when the scratch process reads
    (scratch,) = psutil.Process(owner.pid).children()
    owner.kill()
    owner.wait(PATIENT_SECONDS)
    scratch.wait(PATIENT_SECONDS)
    os.close(writer)


def test_a_plan_is_interrupted_and_leaves_nothing(tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    with (
        interrupt_when_read(tmp_path / "fifo") as read,
        pytest.raises(KeyboardInterrupt),
    ):
        jaxnb.plan("f(3)", setup=read, devices=2)
    assert set(psutil.Process().children()) == before


@pytest.mark.thorough
def test_a_function_that_flax_has_jitted(session: Session) -> None:
    session.run(
        "from flax import nnx\n"
        "mesh = jax.make_mesh((8,), ('i',), axis_types=(jax.sharding.AxisType.Auto,))\n"
        "make = lambda index: np.ones((8, 4), np.float32)[index]\n"
        "x = jax.make_array_from_callback((8, 4), NamedSharding(mesh, P('i')), make)\n"
        "model = nnx.Linear(4, 4, rngs=nnx.Rngs(0))\n"
        "step = nnx.jit(lambda model, x: model(x).mean())\n"
        "None"
    )
    (mean,) = session.collectives("step(model, x)")
    assert (mean.kind, mean.axes, mean.shape) == ("all-reduce", ("i",), ())
