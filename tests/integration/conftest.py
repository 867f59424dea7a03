"""What the integration tests share beside ``jaxnb_fixtures``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from jaxnb.session import Session
from jaxnb_arrays import CLASSES

# IPython's own %reset collects garbage: up to a second a test for four processes on two cores.
CLEAR = """
def _clear(shell=get_ipython()):
    import jaxnb.engine.bootstrap as bootstrap
    for name in list(shell.user_ns):
        if not name.startswith("_") and name not in shell.user_ns_hidden:
            del shell.user_ns[name]
    shell.user_ns.pop("_", None)  # a loop variable of that name would keep IPython from setting it
    shell.push(bootstrap.namespace(), interactive=False)
_clear()
"""


class Gate:
    """Where a cell waits until the test lets it go on.

    The processes sleep in ``open`` of a FIFO; nothing is polled.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "gate"
        os.mkfifo(self.path)
        self._descriptors: list[int] = []

    @property
    def wait(self) -> str:
        """Code that waits."""
        return f"open({str(self.path)!r}).close()"

    def open(self) -> None:
        """Lets those through who wait, and who come later."""
        self._descriptors.append(os.open(self.path, os.O_RDWR))

    def close(self) -> None:
        """Lets through who still waits, where a test failed, and forgets the FIFO."""
        self.open()
        for descriptor in self._descriptors:
            os.close(descriptor)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """A closed gate."""
    gate = Gate(tmp_path)
    yield gate
    gate.close()


@pytest.fixture
def session(shared_session: Session) -> Session:
    """The shared group with a cleared namespace; ``Out`` and ``_`` stay."""
    shared_session.run(CLEAR)
    return shared_session


@pytest.fixture
def classes(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModuleType]:
    """A module that the notebook and the processes import; `classes` on the processes."""
    name = "classes_of_a_test"
    (tmp_path / f"{name}.py").write_text(CLASSES)
    monkeypatch.syspath_prepend(tmp_path)
    session.run(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport {name} as classes\n"
                "classes.register(jax)")  # fmt: skip
    yield importlib.import_module(name)
    del sys.modules[name]
    session.run(f"import sys\nsys.path.remove({str(tmp_path)!r})\ndel sys.modules['{name}']")
