"""What an interrupt looks like in a cell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


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
