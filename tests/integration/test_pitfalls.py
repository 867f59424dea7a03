"""Each pitfall is told of once, with its line; healthy code is left alone. On real processes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from jaxnb.cells.card_cell import pitfalls_card
from jaxnb.cells.sinks import NoSink
from jaxnb.errors import CellError, PitfallWarning
from jaxnb.model.insight import Pitfall
from jaxnb.pitfalls.findings import Said
from jaxnb.pitfalls.help import page
from jaxnb.session import Session
from support.fixtures import own_frames

SETUP = """
import functools
from jax.experimental import multihost_utils as mh
Auto = jax.sharding.AxisType.Auto
n = jax.device_count()
mesh = jax.make_mesh((n,), ("d",), axis_types=(Auto,))
rows, everywhere = NamedSharding(mesh, P("d")), NamedSharding(mesh, P())
def put(whole, sharding=rows):
    return jax.make_array_from_callback(whole.shape, sharding, lambda i: whole[i])
def shaped(shape, sharding, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
x = put(np.arange(2.0 * n, dtype=np.float32))
total = jax.jit(jnp.sum)
float(total(x))
"""


class Silent(NoSink):
    """Takes notices, so that they are no warnings."""


@pytest.fixture
def group(session: Session) -> Iterator[Session]:
    """The shared group, which has not told of anything yet."""
    session.run(SETUP)
    session._records.said = Said()
    yield session
    session.run("globals().pop('x', None);")


def pitfalls(group: Session, code: str, **settings: object) -> tuple[Pitfall, ...]:
    """Runs a cell, and returns what it tells of; an error of the cell may be a part of it."""
    try:
        return group.run(code, sink=Silent(), **settings).pitfalls  # type: ignore[arg-type]
    except CellError as error:
        return error.result.pitfalls


TRIGGERS = {
    "jit of pmap": (
        "f = jax.pmap(lambda a: jax.lax.psum(a, 'i'), axis_name='i')\n"
        "y = jax.jit(f)(jnp.ones(jax.local_device_count()))",
        ("jit-of-pmap", 2, "2 devices of its own process, not over all 8"),
    ),
    "host array": (
        "w = np.ones((n, 1 << 15), np.float32)\ny = jax.device_put(w, rows)",
        ("device-put", 2, "a host array float32[8,32768] (1.00 MiB)"),
    ),
    "array on one device, put in a function": (
        "def load():\n    w = jnp.ones((n, 1 << 15))\n    return jax.device_put(w, rows)\nload();",
        ("device-put", 3, "4.00 MiB on each"),
    ),
    "fetch by NumPy": ("1\nnp.asarray(x)", ("fetch", 2, "No process holds the whole")),
    "fetch by iteration": ("for a in x: print(a)", ("fetch", 1, "No process holds the whole")),
    "printing without jit": ("jax.debug.print('{}', x)", ("fetch", 1, "none can read it, print")),
    "shapes in a loop": (
        "f = jax.jit(lambda a: a * 2)\nfor i in range(10):\n    f(np.ones(i + 1));",
        (
            "recompiled",
            3,
            "10 programs at this line: argument 1 of 1 was float32[1], then float32[2].",
        ),
    ),
    "an array that grows": (
        "acc = jnp.ones(1)\nfor i in range(9):\n    acc = jnp.concatenate([acc, acc[:1] * 3]);",
        (
            "recompiled",
            3,
            "9 programs at this line: argument 1 of 2 was float32[1], then float32[2]",
        ),
    ),
    "a new function in a loop": (
        "for i in range(8):\n    jax.jit(lambda a: a * 2)(1.0)",
        ("recompiled", 2, "needed 8 programs"),
    ),
    "equal data of 64 bits": (
        "w = np.random.default_rng(0).normal(size=2 * n)\ny = jax.device_put(w, rows)",
        ("unequal-data", 2, "equal data on all processes"),
    ),
    "host data of other shapes": (
        "w = np.ones((n + n * (process_index == 2), 2), np.float32)\ny = jax.device_put(w, rows)",
        ("unequal-data", 2, "float32[8,2] on processes 0-1,3, float32[16,2] on process 2."),
    ),
    "donated": (
        "old = {'x': x + 1}\njax.jit(lambda t: {'x': t['x'] * 2}, donate_argnums=0)(old);\n"
        "jax.tree.map(jnp.sum, old)",
        ("deleted", 3, "`old['x']` is deleted: its memory"),
    ),
    "a gradient over Explicit axes": (
        "m = jax.make_mesh((n,), ('d',))\n"
        "a = put(np.ones((2 * n, 2), np.float32), NamedSharding(m, P('d')))\n"
        "w = put(np.ones((2, 3), np.float32), NamedSharding(m, P()))\n"
        "jax.grad(lambda w, a: ((a @ w) ** 2).mean())(w, a)",
        ("explicit-axes", 4, "The mesh's axes are Explicit"),
    ),
    # The first cell of JAX's tutorial of `shard_map`.
    "in-specs": (
        "m = jax.make_mesh((jax.device_count(),), ('d',))\n"
        "f = jax.shard_map(lambda x: x * 2, mesh=m, in_specs=P('d'), out_specs=P('d'))\n"
        "f(jnp.arange(8.0))",
        ("explicit-axes", 3, "The mesh's axes are Explicit"),
    ),
}


@pytest.mark.parametrize("case", TRIGGERS)
def test_a_pitfall_is_told_of_once_and_an_error_each_time(group: Session, case: str) -> None:
    code, expected = TRIGGERS[case]
    kind, line, words = expected
    # What each process compiles for itself one does as well as four.
    ranks = [0] if kind == "recompiled" else range(group.num_processes)
    found = pitfalls(group, code, ranks=ranks)
    assert [(each.kind, each.line) for each in found] == [(kind, line)]
    assert words in found[0].message
    assert found[0].processes == tuple(ranks)
    # What explains an error is said each time.
    assert pitfalls(group, code, ranks=ranks) == (found if found[0].is_of_error else ())


def test_an_error_in_a_function_of_an_earlier_cell_names_its_line(group: Session) -> None:
    group.run(
        "explicit = jax.make_mesh((n,), ('d',))\n"
        "def product(a):\n"
        "    b = a + 1\n"
        "    return b @ a.T\n"
        "parts = put(np.ones((n, n), np.float32), NamedSharding(explicit, P(None, 'd')))"
    )
    (found,) = pitfalls(group, "1\njax.jit(product)(parts)")
    assert found.line == 2
    assert found.message.endswith("Raised in `product`: `return b @ a.T`.")
    assert "`jnp.matmul(x, w, out_sharding=s)`" in found.advice


def test_what_print_leaves_out_is_told_once(group: Session) -> None:
    (found,) = pitfalls(group, "print({'w': x})")
    assert "prints the shape and the dtype only" in found.message
    assert found.page == "%spmd_help fetch"
    assert pitfalls(group, "print(x)") == ()
    session = "print(np.ones(3), jnp.ones(2), 'Array(shape)', x.sharding)"
    assert pitfalls(group, session) == ()


HEALTHY = {
    "jit-of-pmap": [
        "f = jax.pmap(lambda a: jax.lax.psum(a, 'i'), axis_name='i')\n"
        "for _ in range(3): f(jnp.ones(jax.local_device_count()))",
        # Who names the devices of one process means them.
        "f = jax.pmap(lambda a: jax.lax.psum(a, 'i'), axis_name='i', devices=jax.local_devices())\n"
        "jax.jit(f)(jnp.ones(jax.local_device_count()));",
        "inner = jax.vmap(lambda a: a + 1, axis_name='i')\njax.jit(inner)(x);",
    ],
    "device-put": [
        "step = jax.device_put((0, jax.random.PRNGKey(0)), everywhere)",
        "y = jax.device_put(np.ones((n, 1 << 14), np.float32), rows)",
        "w = np.ones((n, 1 << 17), np.float32)\n"
        "local = jax.make_mesh((2,), ('l',), devices=jax.local_devices())\n"
        "y = jax.device_put(w, NamedSharding(local, P('l')))\nz = jax.device_put(w)",
        "w = put(np.ones((n, 1 << 17), np.float32))\ny = jax.device_put(w, everywhere)",
        # The user's own comparison.
        "mh.assert_equal(np.ones((n, 1 << 15), np.float32))",
    ],
    "fetch": [
        "print(float(total(x)))\n"
        "np.asarray(x.addressable_data(0)), mh.process_allgather(x, tiled=True)",
        "try: np.asarray(x)\nexcept RuntimeError: print('as one should')",
        "try: list(x)\nexcept AssertionError: print('as one should')",
        "x",
    ],
    "explicit-axes": [
        "w = put(np.ones((2, 3), np.float32), everywhere)\n"
        "a = put(np.ones((2 * n, 2), np.float32))\n"
        "jax.jit(jax.grad(lambda w, a: ((a @ w) ** 2).mean()))(w, a);",
        "try: raise jax.errors.JAXTypeError('ShardingTypeError: Explicit')\n"
        "except TypeError: print('as one should')",
    ],
    "recompiled": [
        "f = jax.jit(lambda a: a * 2)\nfor i in range(7): f(np.ones(i + 1));",
        "f = jax.jit(lambda a: a * 2)\nfor i in range(50): f(np.ones(3));",
        # A library's function, and eager operations: a layer each.
        "params = [jnp.ones(i + 1) * 2 for i in range(9)]\nfor p in params: jnp.linalg.norm(p)",
        "f = jax.jit(lambda a: a * 2)\nfor i in range(9): f.lower(np.ones(i + 1));",
    ],
}

ERRORS_OF_THEIR_OWN = {
    "an error of the user": "raise RuntimeError('of the user')",
    "an assertion without words": "assert process_index > n",
}


@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_code_is_left_alone(group: Session, kind: str) -> None:
    ranks = [0] if kind == "recompiled" else None
    for code in HEALTHY[kind]:
        assert group.run(code, sink=Silent(), ranks=ranks).pitfalls == (), code


def test_errors_that_say_it_themselves_are_left_alone(group: Session) -> None:
    for code in ERRORS_OF_THEIR_OWN.values():
        result = group.run(code, sink=Silent(), raise_on_error=False)
        assert len(result.errors) == group.num_processes
        assert result.pitfalls == (), code


FETCH = "np.asarray(x)"
LOOP = "f = jax.jit(lambda a: a * 3)\nfor i in range(8): f(np.ones(i + 1))"


def test_a_line_that_was_told_of_is_not_told_of_in_another_cell(group: Session) -> None:
    (first,) = pitfalls(group, LOOP, ranks=[1])
    assert (first.processes, first.source) == ((1,), "for i in range(8): f(np.ones(i + 1))")
    assert pitfalls(group, f"print('moved')\n{LOOP}", ranks=[2]) == ()
    (other,) = pitfalls(group, LOOP.replace("i + 1", "i + 2"), ranks=[2])
    assert other.kind == "recompiled"


def test_python_is_warned_and_an_error_has_a_note(group: Session) -> None:
    with pytest.warns(PitfallWarning, match=r"process 1: line 2: `<lambda>` needed 8 programs"):
        result = group.run(LOOP.replace("range(8)", "range(8 * (process_index == 1))"))
    assert [each.kind for each in result.pitfalls] == ["recompiled"]
    with pytest.raises(CellError) as caught:
        group.run(FETCH)
    assert "No process holds the whole array" in caught.value.__notes__[0]
    assert "`%spmd_help fetch`" in caught.value.__notes__[0]
    # JAX's own exception is as it was.
    error = caught.value.result.errors[0]
    assert "%spmd_pull" not in f"{error.message}{error.traceback}"


def test_the_user_sees_no_frame_of_ours(group: Session) -> None:
    code = "jax.jit(lambda a: jax.pmap(lambda b: b, axis_name='i')(a))(jnp.ones((9, 9)))"
    with pytest.raises(CellError) as caught:
        group.run(code)
    assert own_frames(caught.value.result.errors[0].traceback) == []


def test_it_can_be_switched_off(group: Session, make_session: Callable[..., Session]) -> None:
    assert pitfalls(group, LOOP, ranks=[0], check="off") == ()
    assert len(pitfalls(group, LOOP, ranks=[0])) == 1
    quiet = make_session(1, pitfalls=False)
    assert quiet.run(LOOP).pitfalls == ()


@pytest.mark.thorough
def test_a_check_that_fails_does_no_harm_and_is_told_of_once(
    make_session: Callable[..., Session],
) -> None:
    group = make_session(2)
    group.run("import jaxnb.pitfalls.process_pitfalls as found\nfound.Lowerings.add = None")
    result = group.run("float(jax.jit(lambda a: a + 1)(1.0))", sink=Silent())
    assert result.value == 2.0
    (told,) = result.pitfalls
    assert (told.kind, told.processes) == ("unchecked", (0, 1))
    assert told.message.partition(", in `")[0] in " ".join(page("unchecked").split())
    assert pitfalls(group, LOOP) == ()  # what is broken is switched off
    # A restart begins anew, a recovery does not.
    group.restart()
    assert [each.kind for each in pitfalls(group, LOOP)] == ["recompiled"]
    group.recover()
    assert pitfalls(group, LOOP) == ()


NO_PITFALLS = {"glossary", "seeds", "unchecked"}
OF_PAGES = sorted({*re.findall(r"%spmd_help ([\w-]+)", page(""))} - NO_PITFALLS)
"""That no pitfall can be looked for does not happen: :func:`test_a_check_that_fails…` makes it."""


@pytest.mark.parametrize("kind", OF_PAGES)
def test_pages_quote_what_is_printed(group: Session, kind: str) -> None:
    text = page(kind)
    (code,) = re.findall(r"```python\n%%spmd(\n.*?)```", text, re.DOTALL)
    (quoted,) = re.findall(r"```text\n(?:.*?\n)??(⚠.*?)```", text, re.DOTALL)
    said = group.run(code, sink=Silent(), raise_on_error=False)
    group.run("jax.config.update('jax_enable_x64', False)", sink=Silent())
    card = pitfalls_card(said).text
    assert " ".join(quoted.split()) in " ".join(card.split())


def test_the_page_on_settings_quotes_the_refusal(group: Session) -> None:
    group.run("if process_index == 2: jax.config.update('jax_enable_x64', True)", sink=Silent())
    step = "@functools.partial(jax.jit, out_shardings=rows)\ndef step(): return jnp.arange(8.0)\n"
    result = group.run(f"{step}step()", sink=Silent(), raise_on_error=False)
    group.run("jax.config.update('jax_enable_x64', False)", sink=Silent())
    quoted = " ".join(page("settings").split())
    assert f"DivergenceError: {result.errors[0].message}" in quoted
