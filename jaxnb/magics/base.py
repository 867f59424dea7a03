"""What the magics share: the notebook's shell and its session."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from IPython.core.magic import Magics

from jaxnb.errors import UsageError

if TYPE_CHECKING:
    from jaxnb.session import Session


@contextmanager
def plain_interrupt(text: str) -> Iterator[None]:
    """Shows an interrupt of the block as one line, without the frames of jaxnb's own code.

    Args:
        text: What to say, if the interrupt itself says nothing.

    Raises:
        KeyboardInterrupt: The block was interrupted.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        lines = [f"KeyboardInterrupt: {str(error) or text}", *getattr(error, "__notes__", ())]
        shown = KeyboardInterrupt(str(error) or text)
        # IPython shows what this returns; a subclass would have another name in the notebook.
        shown._render_traceback_ = lambda: lines  # type: ignore[attr-defined]
        raise shown from None


class SessionMagics(Magics):
    """Magics that use the notebook's session.

    Args:
        shell: The notebook's shell.
        current: Returns the notebook's session; None while there is none.
    """

    shell: Any  # an InteractiveShell; traitlets allows None

    def __init__(self, shell: Any, current: Callable[[], Session | None]) -> None:
        super().__init__(shell)
        self._current = current

    def _line_in_cell(self) -> int:
        """Returns at which line of its cell a line magic stands; 1 if no cell called it."""
        frame = inspect.currentframe()
        while frame is not None and frame.f_globals is not self.shell.user_global_ns:
            frame = frame.f_back
        return 1 if frame is None else frame.f_lineno

    def _started(self) -> Session:
        """Returns the notebook's session.

        Raises:
            UsageError: There is none.
        """
        session = self._current()
        if session is None:
            raise UsageError(
                "There is no group of processes. Nothing was run. Type `%spmd_start`, or "
                "`%spmd_start -n 4` for four processes."
            )
        return session
