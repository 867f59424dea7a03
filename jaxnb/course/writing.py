"""Writes the course's notebooks to a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
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
    """Writes the course to a folder: what is not there, and new versions of what is unchanged.

    A notebook that was only run, so that it has outputs, is unchanged. A file of which the course
    has no new version is left as it is.

    Args:
        folder: Is made if it does not exist.
        solutions: Write the solutions too.

    Returns:
        What was written, in a sentence.

    Raises:
        UsageError: A file was changed, or is not of the course; or the folder is none, or its
            record is damaged. Nothing was written.
        OSError: A file cannot be read or written.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder. Nothing was written.")
    before = _written_before(folder / WRITTEN)
    files = course_files(solutions=solutions)
    digests = {name: _digest(data) for name, data in files.items()}
    due = [
        name
        for name, digest in digests.items()
        if digest != before.get(name) or not (folder / name).exists()
    ]
    changed = [name for name in due if _is_changed(folder / name, digests[name], before.get(name))]
    if changed:
        shown = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if changed[3:] else "")
        raise UsageError(
            f"Changed since `jaxnb course` wrote to {folder}, or not of the course: {shown}. "
            "Nothing was written. Move away what you have changed, or type `jaxnb course "
            "ANOTHER_FOLDER`."
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name in due:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(files[name])
    (folder / WRITTEN).write_text(json.dumps({**before, **digests}, indent=1))
    first = min((name for name in files if name.endswith(".ipynb")), default="")
    return f"{_counted(due)} written to {folder}. Begin with: jupyter lab {folder / first}"


def _counted(names: Sequence[str]) -> str:
    """Returns ``"12 notebooks and 1 other file"``, without what is 0."""
    notebooks = sum(name.endswith(".ipynb") for name in names)
    solutions = sum(name.startswith(f"{SOLUTIONS}/") for name in names)
    others = len(names) - notebooks - solutions
    parts = [plural(notebooks, "notebook")] if notebooks else []
    parts += [f"{plural(solutions, 'file')} of solutions"] if solutions else []
    parts += [plural(others, "other file")] if others else []
    return " and ".join(parts) or "No new version of any file was"


def _written_before(record: Path) -> dict[str, str]:
    """Returns the digests of what was written.

    Raises:
        UsageError: The record is damaged.
    """
    try:
        return dict(json.loads(record.read_bytes()))
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError):
        raise UsageError(
            f"{record}, which says what `jaxnb course` wrote, is damaged. Nothing was written. "
            "Delete it and type the command again; files that differ from the course's then count "
            "as changed."
        ) from None


def _is_changed(path: Path, new: str, written: str | None) -> bool:
    """Whether there is a file that is neither what is to be written nor what was."""
    return path.exists() and _digest(path.read_bytes()) not in (new, written)


def _digest(data: bytes) -> str:
    """Returns a digest of a file: of a notebook, of its cells without their outputs."""
    with suppress(ValueError, TypeError, LookupError):  # no notebook
        cells = json.loads(data)["cells"]
        parts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
        data = json.dumps(parts).encode()
    return hashlib.sha256(data).hexdigest()
