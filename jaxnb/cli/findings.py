"""What ``jaxnb doctor`` has found, one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "unusable", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        level: ``"ok"``, ``"warning"`` or ``"error"``; ``"unusable"`` of a launcher that cannot be
            used here, which is no fault of a machine.
        text: What was found.
        fix: What to type, where something is wrong or missing.
        launchers: The launchers that it is about; empty if it is about the machine.
    """

    level: Level
    text: str
    fix: str = ""
    launchers: tuple[str, ...] = ()

    def __str__(self) -> str:
        of = ", ".join(self.launchers)
        lines = [f"{self.level:8} {f'launcher {of}: ' if of else ''}{self.text}"]
        if self.fix:
            lines.append(f"{'':8} fix: {self.fix}")
        return "\n".join(lines)
