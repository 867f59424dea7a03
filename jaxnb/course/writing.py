"""Writes the course's notebooks to a folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from jaxnb.errors import UsageError
from jaxnb.labels import plural

_INSTALLED = Path(__file__).parent / "notebooks"
_CHECKOUT = Path(__file__).parents[2] / "notebooks" / "course"

SOLUTIONS = "solutions"

WRITTEN = ".jaxnb-course.json"
"""In the folder: what was written there, as digests, so that changes are seen."""

_LEFT_OUT = {"__pycache__", ".ipynb_checkpoints", "executed"}


def course_files(*, solutions: bool) -> dict[str, bytes]:
    """Returns the course's files, by their names in the folder.

    Args:
        solutions: Those of the exercises too.
    """
    place = _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT
    found = {}
    for path in sorted(place.rglob("*")):
        name = path.relative_to(place)
        is_wanted = solutions or name.parts[0] != SOLUTIONS
        if path.is_file() and is_wanted and not _LEFT_OUT & set(name.parts):
            found[name.as_posix()] = path.read_bytes()
    return found


def write_course(folder: Path, *, solutions: bool = False) -> str:
    """Writes the course to a folder; files that are there as they were written are replaced.

    Args:
        folder: Is made if it does not exist.
        solutions: Write the solutions too.

    Returns:
        What was written, in a sentence.

    Raises:
        UsageError: A file was changed, or is not of the course: nothing was written.
        OSError: A file cannot be read or written.
    """
    files = course_files(solutions=solutions)
    record = folder / WRITTEN
    before = json.loads(record.read_text()) if record.exists() else {}
    changed = [
        name
        for name, data in files.items()
        if _is_changed(folder / name, _digest(data), before.get(name))
    ]
    if changed:
        shown = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if changed[3:] else "")
        raise UsageError(
            f"Not as `jaxnb course` wrote it: {shown} in {folder}. Nothing was written. Move away "
            "what you have changed, or type `jaxnb course ANOTHER_FOLDER`."
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    digests = {name: _digest(data) for name, data in files.items()}
    record.write_text(json.dumps({**before, **digests}, indent=1))
    notebooks = sorted(name for name in files if name.endswith(".ipynb"))
    first = notebooks[0] if notebooks else ""
    return (
        f"{plural(len(notebooks), 'notebook')} written to {folder}. "
        f"Begin with: jupyter lab {folder / first}"
    )


def _is_changed(path: Path, new: str, written: str | None) -> bool:
    """Whether there is a file that is neither what is to be written nor what was."""
    return path.exists() and _digest(path.read_bytes()) not in (new, written)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
