"""What IPython asks a session for, while its user types."""

from __future__ import annotations

from jaxnb.assist.helper import Assist


class Helped:
    """Something whose names live on processes.

    Attributes:
        assist: Help while typing code for these processes.
    """

    assist: Assist

    def _ipython_key_completions_(self) -> list[str]:
        """Returns what ``spmd["`` may go on with."""
        return list(self.assist.names())
