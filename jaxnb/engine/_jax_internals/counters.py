"""Numbers that libraries count up on each process by itself, and that must be equal on all.

A process that replaces another would begin at the first number again. Its programs would differ
from those of the others (error codes of ``checkify``), or it would look on the coordination
service for what the others have announced under other numbers (checkpoints). So it is given the
numbers with everything else that belongs to no name.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Counter:
    """A number that a library counts up.

    Attributes:
        module: Where it is counted.
        name: What holds the :class:`itertools.count`, or its ``__next__``, in the module.
        first: The number that comes first in a process that is new.
        class_name: The class in the module of which it is an attribute; empty for none.
        latest: The attribute that has the number given out last; empty for none.
        library: Counts somewhere else, in a version where it is imported without the module.
    """

    module: str
    name: str
    first: int
    class_name: str = ""
    latest: str = ""
    library: str = ""

    def read(self) -> int | None:
        """Returns the number that comes next; None if none has been counted yet."""
        if self.module not in sys.modules:
            return _UNKNOWN if self.library in sys.modules else None
        found: Any = getattr(self._holder(sys.modules[self.module]), self.name, None)
        told = re.fullmatch(r"count\((\d+)\)", repr(getattr(found, "__self__", found)))
        following = int(told[1]) if told else _UNKNOWN
        return None if following == self.first else following

    def write(self, following: int | None) -> None:
        """Counts on from a number that :meth:`read` has returned on another process.

        Raises:
            LookupError: This version of the library counts in a way that is not known here.
        """
        if following is None:
            return
        if following == _UNKNOWN:
            raise LookupError(
                f"this version of {self.library or self.module} counts in a way that jaxnb does "
                "not know; the process begins at the first number again"
            )
        holder = self._holder(importlib.import_module(self.module))
        counted = count(following - 1 if self.latest else following)
        if self.latest:
            setattr(holder, self.latest, next(counted))
        is_method = callable(getattr(holder, self.name))
        setattr(holder, self.name, counted.__next__ if is_method else counted)

    def _holder(self, module: Any) -> Any:
        return getattr(module, self.class_name, None) if self.class_name else module


_COUNTERS = {
    "the count of checkify's errors": Counter("jax._src.checkify", "next_code", first=1),
    "the count of JAX's asynchronous checkpoints": Counter(
        "jax.experimental.array_serialization.serialization", "_module_unique_count", first=0
    ),
    "the count of Orbax's operations": Counter(
        "orbax.checkpoint._src.futures.synchronization",
        "_operation_id_counter",
        first=1,
        class_name="OperationIdGenerator",
        latest="_operation_id",
        library="orbax.checkpoint",
    ),
}

COUNTS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    name: (counter.read, counter.write) for name, counter in _COUNTERS.items()
}
"""How to read and to set each of them."""
