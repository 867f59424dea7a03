"""Which code is the user's own: cells, and modules outside the installed packages."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from functools import lru_cache
from types import ModuleType
from typing import Any


@lru_cache(maxsize=1)
def _installed() -> tuple[str, ...]:
    """Returns the folders of Python, of installed packages and of jaxnb."""
    found = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found |= {*site.getsitepackages(), site.getusersitepackages()}
    found.add(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return tuple(os.path.join(os.path.realpath(folder), "") for folder in found if folder)


def is_of_user(module: Any) -> bool:
    """Whether a module is the user's: a file in the notebook's folder, say."""
    file = getattr(module, "__file__", None) if type(module) is ModuleType else None
    return isinstance(file, str) and _is_file_of_user(file)


@lru_cache(maxsize=8192)
def _is_file_of_user(file: str) -> bool:
    return not os.path.realpath(file).startswith(_installed())


def modules_of_user() -> list[ModuleType]:
    """Returns the user's modules that have been imported."""
    return [module for module in list(sys.modules.values()) if is_of_user(module)]


def is_code_of_user(module_name: Any) -> bool:
    """Whether classes of a module of this name are the user's: those that cells define are."""
    if not isinstance(module_name, str):
        return False
    return module_name == "__main__" or is_of_user(sys.modules.get(module_name))
