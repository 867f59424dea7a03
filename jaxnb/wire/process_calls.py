"""Functions of what runs in processes, called by their names: who asks for one knows no other."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import Any

_FUNCTION = re.compile(r"(jaxnb\.\w+\.process_\w+)\.([a-z]\w*)")


def call(process: Any, name: str, data: Mapping[str, Any]) -> Any:
    """Calls ``jaxnb.FEATURE.process_NAME.FUNCTION``; no other function can be named.

    Args:
        process: What this process has, which is the function's first argument.
        name: The function's.
        data: Its others.

    Raises:
        ValueError: It is none that a process can be asked to call.
    """
    found = _FUNCTION.fullmatch(name)
    if found is None:
        raise ValueError(f"{name} is not a function that a process may be asked to call")
    function = getattr(importlib.import_module(found[1]), found[2])
    return function(process, **data)
