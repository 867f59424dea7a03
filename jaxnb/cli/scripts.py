"""Files of a command: those it will write, and the script or module that it reads, once for all.

Light to import: the fork server is started before what runs the script is imported.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from jaxnb.errors import UsageError
from jaxnb.model.scripts import OF_TERMINALS, Script


def script_of(path: str, arguments: Sequence[str]) -> Script:
    """Returns the script of a file, or of a folder with a ``__main__.py``.

    Raises:
        UsageError: There is none; nothing was started.
        SyntaxError: It is not Python.
    """
    file = os.path.join(path, "__main__.py") if os.path.isdir(path) else path
    if file != path and not os.path.exists(file):
        raise UsageError(f"Cannot run the folder {path!r}: it has no __main__.py.")
    folder = os.path.dirname(os.path.abspath(file))
    return _read(os.path.basename(path.rstrip("/")), file, (path, *arguments), folder, "")


def module_of(module: str, arguments: Sequence[str]) -> Script:
    """Returns the script of a module, as ``python -m`` finds it; nothing is imported.

    Raises:
        UsageError: There is none; nothing was started.
        SyntaxError: It is not Python.
    """
    places: Sequence[str] | None = [os.getcwd(), *sys.path]
    name = file = ""
    parts = [*module.split("."), "__main__"]
    for part in parts:
        spec = None if places is None else PathFinder.find_spec(f"{name}.{part}".strip("."), places)
        if spec is None:
            raise UsageError(f"There is no module {module!r} to run: {part!r} was not found.")
        name, places = spec.name, spec.submodule_search_locations
        file = spec.origin or ""
        if places is None and part == parts[-2]:  # a module; a package has a __main__
            break
    return _read(f"-m {module}", file, (os.path.abspath(file), *arguments), os.getcwd(), name)


def _read(name: str, file: str, arguments: tuple[str, ...], folder: str, module: str) -> Script:
    try:
        with open(file, "rb") as stream:
            source = stream.read()
    except OSError as error:
        raise UsageError(f"Cannot read {file!r}: {error.strerror}. Nothing was started.") from error
    path = os.path.abspath(file)
    compile(source, path, "exec", dont_inherit=True)
    return Script(name, path, source, arguments, folder, module, _input_pid(), _environment())


def _environment() -> dict[str, str]:
    """Returns variables of terminals as this process has them; colours are forced on one only."""
    found = {name: os.environ[name] for name in OF_TERMINALS if name in os.environ}
    if sys.stdout.isatty() and sys.stderr.isatty() and found.get("TERM") != "dumb":
        found.setdefault("FORCE_COLOR", "1")  # the streams of a process are pipes
    return found


def _input_pid() -> int:
    """Returns this process, if another can read what it has as standard input."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return 0
    is_empty = stat.S_ISCHR(mode) and os.fstat(0).st_rdev == os.stat(os.devnull).st_rdev
    return os.getpid() if stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or is_empty else 0


def require_writable(file: str, *, instead: str = "") -> None:
    """Makes sure that a file can be written; what it holds stays as it is.

    Args:
        file: The file.
        instead: What to do if it cannot, as a sentence.

    Raises:
        UsageError: It cannot be written.
    """
    path = Path(file)
    try:
        if path.is_file() or path.is_dir():
            path.open("ab").close()
        elif not path.exists():
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        told = f"{file} cannot be written: {error.strerror}. Nothing was started."
        raise UsageError(f"{told} {instead}".rstrip()) from error
