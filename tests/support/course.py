"""The solutions to the course's exercises, and the mistakes that get a hint of their own."""

from __future__ import annotations

import re
from pathlib import Path

SOLUTIONS = Path(__file__).parents[2] / "notebooks" / "course" / "solutions"


def parts(folder: Path) -> dict[str, str]:
    """Returns the parts of a folder's files, each with the imports of its file, by their titles."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.py")):
        beginning, *pairs = re.split(r"^# %% (.*)$", path.read_text(), flags=re.MULTILINE)
        for title, code in zip(pairs[::2], pairs[1::2], strict=True):
            assert title not in found, f"{path}: {title} stands there twice"
            found[title] = f"{beginning}{code}"
    return found
