"""Names of a package that are imported from its modules when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any


def lazy(package: str, modules: Iterable[str]) -> Callable[[str], Any]:
    """Returns a ``__getattr__`` for a module that finds its names in other modules.

    ``%load_ext jaxnb`` takes under 50 ms only if it loads no more than it needs.

    Args:
        package: The ``__name__`` of the module that is to have the names; its ``__all__``
            tells which.
        modules: Full names of the modules to look in, in this order.
    """
    homes = tuple(modules)

    def getattribute(name: str) -> Any:
        here = sys.modules[package]
        if name in here.__all__:
            for home in homes:
                module = import_module(home)
                if hasattr(module, name):
                    found = getattr(module, name)
                    setattr(here, name, found)  # the next use does not come here
                    return found
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return getattribute
