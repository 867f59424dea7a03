"""A program on one of the hosts that does what a test says, with the notebook's side of a group.

In a test::

    program = Program(hosts.a)
    program.do("session = jaxnb.start(2, hosts='hostA,hostB', platform='cpu')")
    assert program.do("session.run('1 + 1').value") == 2
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from support.hosts import ROOT, Host

# Its value is 66, for groups of any size that divides twelve.
CELL = """
mesh = jax.make_mesh((jax.device_count(),), ("d",))
x = jax.device_put(jnp.arange(12.0), NamedSharding(mesh, P("d")))
total = jax.jit(jnp.sum)
both = "both"
float(total(x))
"""


class RaisedError(AssertionError):
    """The program raised; the text has the kind of error, its message and its notes."""


class Here:
    """This host, for a program."""

    def popen(
        self, *words: str, folder: str, env: Mapping[str, str], **settings: Any
    ) -> subprocess.Popen[str]:
        """Starts a program; see :meth:`~support.hosts.Host.popen`."""
        return subprocess.Popen(words, cwd=folder, env={**os.environ, **env}, **settings)


class Program:
    """Starts a Python program on a host, which has ``jaxnb``, ``np``, ``said`` and ``Says``.

    ``said`` has the sentences that a cell with ``sink=Says()`` was told.

    Args:
        host: Where it runs.
        before: What is put before its command line.
        env: Variables that it gets.
        python: What runs it.

    Attributes:
        process: It, as :meth:`~support.hosts.Host.popen` returns it.
    """

    def __init__(
        self,
        host: Host | Here,
        *before: str,
        env: Mapping[str, str] = {},
        python: str = sys.executable,
    ) -> None:
        paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        words = [*before, python, "-m", "support.remote"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        own = {"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"}
        self.process = host.popen(*words, folder=str(ROOT), env={**own, **env}, **pipes)

    def do(self, code: str) -> Any:
        """Has it run code; returns the last line's value as JSON has it.

        Raises:
            RaisedError: The code raised.
        """
        self.begin(code)
        return self.end()

    def begin(self, code: str) -> None:
        """Has it run code; :meth:`end` waits for that."""
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()

    def end(self) -> Any:
        """Waits for the end of the code that :meth:`begin` began; see :meth:`do`."""
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise RaisedError(answer["error"])
        return answer["value"]

    def close(self) -> None:
        """Ends it with all that it has started; waits for that."""
        with self.process:
            self.process.stdin.close()


def _result(code: str, namespace: dict[str, Any]) -> Any:
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<test>", "exec"), namespace)
    return eval(compile(ast.Expression(last.value), "<test>", "eval"), namespace) if last else None


def main() -> None:
    """Reads code, one JSON text a line, and answers each with a line of JSON."""
    import numpy as np

    import jaxnb
    from jaxnb.cells.sinks import StderrNotices

    said: list[str] = []

    class Says(StderrNotices):
        """Keeps what is said beside a cell's output."""

        def notice(self, text: str) -> None:
            said.append(text)

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    namespace = {"jaxnb": jaxnb, "np": np, "said": said, "Says": Says}
    for line in sys.stdin:
        try:
            answer = {"value": _result(json.loads(line), namespace)}
        except BaseException as error:
            notes = getattr(error, "__notes__", ())
            answer = {"error": "\n".join([f"{type(error).__name__}: {error}", *notes])}
        print(json.dumps(answer, default=str), file=answers, flush=True)


if __name__ == "__main__":
    main()
