"""Files that a command will write: looked at before it starts anything."""

from __future__ import annotations

import tempfile
from pathlib import Path

from jaxnb.errors import UsageError


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
