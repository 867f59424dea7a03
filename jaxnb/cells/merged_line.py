"""The line that merging yields."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxnb.labels import ranks_label
from jaxnb.model.cells import StreamName


@dataclass(frozen=True, slots=True)
class MergedLine:
    """One line, with who wrote it.

    Attributes:
        name: The stream.
        processes: Who wrote it; empty for a notice of jaxnb's own.
        text: The line without its newline; colours are still in it.
        label_width: Columns that the label is padded to.
    """

    name: StreamName
    processes: frozenset[int]
    text: str
    label_width: int = field(default=0, compare=False, repr=False)

    @property
    def label(self) -> str:
        """``"[0-3]"``, padded; empty for a notice."""
        if not self.processes:
            return ""
        return f"[{ranks_label(self.processes)}]".ljust(self.label_width)

    def labelled(self) -> str:
        """Returns ``"[0-3] step 10 loss 0.31"``."""
        return f"{self.label} {self.text}" if self.processes else self.text
