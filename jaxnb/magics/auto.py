"""``%spmd_auto`` and ``%%local``: plain cells that run on the processes, and those that do not."""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from IPython.core.magic import line_magic, magics_class

from jaxnb.assist.completion import hint, magic_hint
from jaxnb.errors import CellError, UsageError
from jaxnb.labels import MAGICS
from jaxnb.magics.arguments import option, parsed
from jaxnb.magics.base import SessionMagics

if TYPE_CHECKING:
    from jaxnb.model.cells import ProcessError
    from jaxnb.session import Session


_LOCAL = re.compile(r"\s*%%local[ \t]*(?=\n|$)")
LOCAL = "# %%local"
"""What the first line of a cell becomes that says that it stays in the notebook."""

_OTHER_MAGIC = re.compile(r"\s*%%")
_OF_HELP = {"pinfo", "pinfo2"}
"""What ``x?`` becomes: it is asked of the processes, as code is."""

_Sent = Literal["", "sent", "mixed"]
_sent = ContextVar[_Sent]("sent by %spmd_auto", default="")


def is_auto() -> bool:
    """Whether the cell that runs was sent to the processes by ``%spmd_auto``.

    Raises:
        UsageError: It was not, as it has magics beside code.
    """
    if _sent.get() == "mixed":
        raise UsageError(
            "`%spmd_auto` is on, and this cell has code, which runs on the processes, beside "
            "magics, which stay in the notebook. Nothing was run. Put them in cells of their own, "
            "or `%%local` on the first line to run all of it in the notebook."
        )
    return bool(_sent.get())


class Auto:
    """Sends plain cells to the processes while it is on.

    Only cells that the user runs: what magics, widgets and extensions run stays in the notebook.

    Args:
        shell: The notebook's shell.

    Attributes:
        is_on: Whether it is.
    """

    def __init__(self, shell: Any) -> None:
        self.is_on = False
        self._shell = shell
        kernel: Any = getattr(shell, "kernel", None)
        if hasattr(kernel, "do_execute"):
            kernel.do_execute = self._of_kernel(kernel.do_execute)
        else:
            shell.run_cell = self._of_terminal(shell.run_cell)

    def takes(self, cell: str) -> bool:
        """Whether a cell runs on the processes, or would if it had no magics in it."""
        return False in self._kinds(cell)

    def _kinds(self, cell: str) -> set[bool]:
        """Returns for the statements of a cell whether they are magics of the notebook.

        Empty if all of it stays there.
        """
        if not self.is_on or _OTHER_MAGIC.match(cell):
            return set()
        try:
            statements = ast.parse(self._shell.transform_cell(cell)).body
        except (SyntaxError, ValueError):  # the processes say what is wrong
            return {False}
        return {_is_magic(each) for each in statements}

    def _run(self, cell: str) -> tuple[str, _Sent]:
        """Returns what a cell is run as, and how it comes to the processes."""
        if _LOCAL.match(cell):
            return _LOCAL.sub(LOCAL, cell, count=1), ""
        kinds = self._kinds(cell)
        if False not in kinds:
            return cell, ""
        return f"%%spmd\n{cell}", "mixed" if True in kinds else "sent"

    def _of_kernel(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)  # the kernel asks for its parameters
        async def do_execute(
            code: str, silent: bool, store_history: bool = True, *rest: Any, **more: Any
        ) -> Any:
            is_users = store_history and not silent
            cell, sent = self._run(code) if is_users else (code, "")
            _sent.set(sent)
            return await original(cell, silent, store_history, *rest, **more)

        return do_execute

    def _of_terminal(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def run_cell(raw_cell: str, store_history: bool = False, *rest: Any, **more: Any) -> Any:
            cell, sent = self._run(raw_cell) if store_history else (raw_cell, "")
            before = _sent.set(sent)
            try:
                return original(cell, store_history, *rest, **more)
            finally:
                _sent.reset(before)

        return run_cell


def _is_magic(statement: ast.stmt) -> bool:
    match statement:
        case (
            ast.Expr(ast.Call(ast.Attribute(ast.Call(ast.Name("get_ipython")), call), arguments))
            | ast.Assign(
                value=ast.Call(ast.Attribute(ast.Call(ast.Name("get_ipython")), call), arguments)
            )
        ):
            name = (
                arguments[0].value if arguments and isinstance(arguments[0], ast.Constant) else ""
            )
            return call != "run_line_magic" or name not in _OF_HELP
    return False


@magics_class
class AutoMagics(SessionMagics):
    """The magic that turns it on and off.

    Attributes:
        auto: What is turned on.
    """

    def __init__(self, shell: Any, current: Callable[[], Any]) -> None:
        super().__init__(shell, current)
        self.auto = Auto(shell)

    @line_magic
    @parsed(
        "Runs plain cells on the processes, or no longer.",
        option("state", nargs="?", choices=("on", "off"), help="the state by default"),
    )
    def spmd_auto(self, asked: argparse.Namespace) -> None:
        """Runs plain cells on the processes, or no longer: `%spmd_auto on`, `%spmd_auto off`."""
        if asked.state == "on":
            self._started()
        if asked.state is not None:
            self.auto.is_on = asked.state == "on"
        print(
            "Cells run on the processes; those of magics, and those that begin with `%%local`, in "
            "the notebook. `%spmd_auto off` ends that."
            if self.auto.is_on
            else "Cells run in the notebook; those that begin with `%%spmd` on the processes."
        )


DEVICES = "Leave this line out, and type `%spmd_stop`, then `%spmd_start --devices-per-process N`."

AUTORELOAD = (
    "`%autoreload` reloads modules in the notebook only. For the processes type `%spmd %load_ext "
    "autoreload` and `%spmd %autoreload 2`; again after a restart or a recovery."
)


def install(shell: Any, current: Callable[[], Session | None]) -> None:
    """Has a shell say after a cell that has failed what to type instead, if that is known.

    The traceback is IPython's, and stays as it is.

    Args:
        shell: The notebook's shell.
        current: Returns the notebook's session; None while there is none.
    """

    def after(result: Any) -> None:
        error = None if result is None else result.error_in_exec or result.error_before_exec
        if error is None:
            return
        session, code = current(), str(result.info.raw_cell)
        said = magic_hint(error, code)
        if isinstance(error, CellError):
            raised = error.result.errors.values()
            said = next(filter(None, map(_told_of, raised)), said)
        if session is not None and not said and not code.startswith(LOCAL):
            try:
                devices = sum(len(each.devices) for each in session.processes)
                said = hint(error, code, session.assist.names, devices)
            except Exception:  # the cell has its own error, and that is what matters
                return
        if said:
            print(f"jaxnb: {said}", file=sys.stderr)

    shell.events.register("post_run_cell", after)
    for name in MAGICS:
        if name in shell.magics_manager.magics["cell"]:
            shell.register_magic_function(_on_a_later_line(name), "line", f"%{name}")


def _told_of(error: ProcessError) -> str:
    """Returns what to type instead of what has failed on a process; empty if that is not known."""
    if error.type_name == "NameError" and "'spmd'" in error.message:
        return "`spmd` is the session in the notebook: use it in a cell without `%%spmd`."
    if "jax_num_cpu_devices" in error.message:
        return f"The processes have their devices already. {DEVICES}"
    return ""


def _on_a_later_line(name: str) -> Callable[[str], NoReturn]:
    """Returns what stands for a cell magic that is not on the first line of its cell.

    IPython takes it for a line magic of that name.
    """

    def raise_error(line: str) -> NoReturn:
        raise UsageError(
            f"`%%{name}` must be on the first line of its cell. The lines above it ran in the "
            "notebook; nothing ran on the processes."
        )

    return raise_error
