"""A thread that only looks at objects dispatches nothing to several processes.

An attribute, a ``__dir__`` or a ``__repr__`` of the user's may compute. Over several processes that
would wait for the others, which know nothing of it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

from jaxnb.errors import JaxnbError


class OnlyLooksError(JaxnbError):
    """A thread that only looks was about to dispatch to several processes."""


class _Thread(threading.local):
    only_looks = False


_THREAD = _Thread()


@contextlib.contextmanager
def only_looking() -> Iterator[None]:
    """Refuses what the block would dispatch to several processes, on this thread.

    What JAX dispatches without a word, as it does with ``check="off"``, is not refused.
    """
    _THREAD.only_looks = True
    try:
        yield
    finally:
        _THREAD.only_looks = False


def only_looks() -> bool:
    """Whether this thread only looks."""
    return _THREAD.only_looks


def refuse(processes: Sequence[int]) -> None:
    """Raises OnlyLooksError if a dispatch of this thread spans several processes."""
    if len(processes) > 1:
        raise OnlyLooksError(
            "This would compute on several processes; to complete a name or to show help, "
            "jaxnb only looks. Nothing was run."
        )
