"""Progress bars of ``tqdm.auto`` and ``tqdm.notebook`` as text.

Their widgets are of the kernel that made them: no front end is connected to a process, and each
would show its own.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _TextBars(MetaPathFinder, Loader):
    """Imports ``tqdm.notebook`` with the bars of ``tqdm`` in it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns that module's only."""
        return importlib.util.spec_from_loader(name, self) if name == "tqdm.notebook" else None

    def exec_module(self, module: Any) -> None:
        """Fills the module."""
        std = importlib.import_module("tqdm.std")
        module.tqdm = module.tqdm_notebook = std.tqdm
        module.trange = module.tnrange = std.trange
        module.IProgress = module.WARN_NOIPYW = ""  # tqdm.autonotebook looks at both


def install() -> None:
    """Has cells that import ``tqdm.auto`` or ``tqdm.notebook`` get bars of text."""
    sys.meta_path.insert(0, _TextBars())
