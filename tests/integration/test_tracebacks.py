"""What a cell raised, in IPython's form: the user's frames whole, the libraries' in short."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import jaxnb
from jaxnb.errors import PitfallWarning
from jaxnb.session import Session

SPREAD = """
mesh = jax.make_mesh((jax.device_count(),), ("d",))
def spread():
    n = jax.device_count()
    return jax.make_array_from_callback(
        (n,), NamedSharding(mesh, P("d")), lambda index: np.ones(1, np.float32))
"""

MODULE = """
import jax.numpy as jnp

def product(x):
    return x @ x
"""


CALLS_BACK = """def wrong(x):
    raise ValueError("my reason")
kind = jax.ShapeDtypeStruct((), jnp.float32)
jax.pure_callback(wrong, kind, jnp.float32(1)).block_until_ready()"""


def test_what_a_callback_raises_comes_first(session: Session) -> None:
    result = session.run(CALLS_BACK, raise_on_error=False)
    for error in result.errors.values():
        first, *rest = error.message.splitlines()
        assert first.endswith("error calling callback: ValueError: my reason")
        assert all("jaxnb" not in line and "site-packages" not in line for line in rest)
        assert any(line.startswith('  File "<cell ') and ", in wrong" in line for line in rest)
        assert "forkserver" not in error.traceback


TAKE_LONG = """
import os, time
class Told(Exception):
    def __str__(self):  # as it is formatted
        open(mine, "w").close()
        while not os.path.exists(others): time.sleep(0.01)
        return "told"
mine, others = ({one!r}, {other!r}) if process_index == 0 else ({other!r}, {one!r})
if process_index == 1:
    while not os.path.exists(others): time.sleep(0.01)
if process_index < 2: raise Told"""


def test_who_raised_first_is_first_however_long_its_error_takes_to_format(
    session: Session, tmp_path: Path
) -> None:
    code = TAKE_LONG.format(one=str(tmp_path / "one"), other=str(tmp_path / "other"))
    result = session.run(code + "(process_index)", raise_on_error=False)
    first, second = sorted(result.errors, key=result.raised_at)
    assert (first, second) == (0, 1)
    at = [result.errors[i].seconds for i in (0, 1)]
    assert at[0] is not None
    assert at[0] < result.per_process[0].seconds  # which has waited for the other to be formatted


def test_frames_of_the_user_are_whole_and_those_of_libraries_short(
    session: Session, tmp_path: Path
) -> None:
    (tmp_path / "the_users.py").write_text(MODULE)
    session.run(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import the_users")
    result = session.run("x = jnp.ones((2, 3))\nthe_users.product(x)", raise_on_error=False)
    text = result.errors[0].traceback
    assert "      1 x = jnp.ones((2, 3))\n----> 2 the_users.product(x)\n" in text
    assert "      4 def product(x):\n----> 5     return x @ x\n" in text
    jax_frames = re.findall(r"^File (\S+/jax/\S+):(\d+), in (\S+)\n----> (\d+) (.*)$", text, re.M)
    assert jax_frames
    for file, line, _, number, source in jax_frames:
        assert line == number
        assert Path(file).read_text().splitlines()[int(line) - 1].strip() == source
    assert text.index("x = jnp.ones") < text.index("def product") < text.index("/jax/")
    assert "IPython" not in text
    session.run("sys.path.pop(0)")


def test_how_jax_calls_the_users_function_is_left_out(session: Session) -> None:
    code = "@jax.jit\ndef f(a):\n    raise KeyboardInterrupt\nf(1.0)"
    text = session.run(code, raise_on_error=False).errors[0].traceback
    assert re.search(r"\n +\[\.\.\. \d+ of JAX\]\n", text)
    assert text.index("---> 4 f(1.0)") < text.index("of JAX]") < text.index("---> 3 ")
    assert "/jax/_src/" not in text


def test_an_interrupt_while_static_arguments_are_compared_is_said_in_a_line(
    session: Session,
) -> None:
    session.run(
        "class Key:\n    __hash__ = lambda self: 1\n"
        "    def __eq__(self, other): raise KeyboardInterrupt\n"
        "f = jax.jit(lambda key, a: a, static_argnums=0)\nf(Key(), 1.0);"
    )
    text = session.run("f(Key(), 1.0)", raise_on_error=False).errors[0].message
    assert "The error was:\nKeyboardInterrupt" in text
    assert "/jaxnb/" not in text
    assert len(text) < 1000


def test_jaxnb_is_not_in_it(session: Session) -> None:
    code = "x = spread()\nx.delete()\njax.block_until_ready(jnp.sum(x))"
    with pytest.warns(PitfallWarning, match="`x` is deleted"):
        text = session.run(SPREAD + code, raise_on_error=False).errors[0].traceback
    assert "RuntimeError: Array has been deleted" in text
    # Not the word: the folder of a checkout, which the environment may be in, is called that too.
    assert str(Path(jaxnb.__file__).parent) not in text
    assert "jaxnb." not in text.replace(sys.prefix, "")
