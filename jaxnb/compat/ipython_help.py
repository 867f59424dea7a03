"""IPython's own names: completion and documentation asked for outside of a kernel's request."""

from __future__ import annotations

from typing import Any

from IPython.core.oinspect import Inspector


def reloads_modules(shell: Any) -> bool:
    """Whether IPython's autoreload is on in a shell."""
    magics = shell.magics_manager.registry.get("AutoreloadMagics")
    return bool(getattr(getattr(magics, "_reloader", None), "enabled", False))


def matches(completer: Any, code: str, offset: int) -> dict[Any, Any]:
    """Returns what each matcher of a completer finds at a place of the code.

    ``completions()`` does no more, and warns: what becomes of warnings is a setting of all threads.
    """
    before = code[:offset].split("\n")
    found: dict[Any, Any] = completer._complete(
        full_text=code, cursor_line=len(before) - 1, cursor_pos=len(before[-1])
    )
    return found


def found_object(shell: Any, name: str) -> Any:
    """Returns what a shell knows of a name: its ``found``, and the object as ``obj``."""
    return shell._object_find(name)


def described(shell: Any, name: str, info: Any, detail: int, str_detail: int) -> dict[str, Any]:
    """Returns the documentation of an object, by MIME type.

    Args:
        shell: The shell, whose colours are used.
        name: The object's name.
        info: What :func:`found_object` has returned.
        detail: 1 for its source, too.
        str_detail: From which detail on the object is printed.
    """
    inspector = Inspector(theme_name=shell.inspector._theme_name, str_detail_level=str_detail)
    bundle: dict[str, Any] = inspector._get_info(info.obj, name, info=info, detail_level=detail)
    return bundle
