"""A sentence below the traceback of a cell that should have run on the processes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from jaxnb.assist.hints import hint, magic_hint
from jaxnb.errors import CellError, UsageError
from jaxnb.labels import MAGICS
from jaxnb.magics.auto import LOCAL

if TYPE_CHECKING:
    from jaxnb.model.cells import ProcessError
    from jaxnb.session import Session


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
                said = hint(error, code, session.assist.names, lambda: _devices(session))
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


def hint_of_code(code: str) -> str:
    """Returns what to say of code that does nothing on processes; empty of other code."""
    if "xla_force_host_platform_device_count" not in code:
        return ""
    return f"XLA has read `XLA_FLAGS` as the processes started. {DEVICES}"


def _devices(session: Session) -> int:
    return sum(len(each.devices) for each in session.processes)


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
