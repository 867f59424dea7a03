"""What the integration tests share beside ``support.fixtures``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from jaxnb.cells import merge_output
from jaxnb.profile import statistics
from jaxnb.session import Session, reach, results
from jaxnb.wire import sentinels
from support.arrays import CLASSES
from support.fixtures import PATIENT_SECONDS
from support.hosts import Hosts
from support.slurm import cannot_slurm, two_nodes

# IPython's own %reset collects garbage: up to a second a test for four processes on two cores.
CLEAR = """
def _clear(shell=get_ipython()):
    import jaxnb.launch.process_join as bootstrap
    for name in list(shell.user_ns):
        if not name.startswith("_") and name not in shell.user_ns_hidden:
            del shell.user_ns[name]
    shell.user_ns.pop("_", None)  # a loop variable of that name would keep IPython from setting it
    shell.push(bootstrap.namespace(), interactive=False)
_clear()
"""


LAUNCHERS = pytest.mark.parametrize(
    "launcher", ["fork", pytest.param("local", marks=pytest.mark.thorough)]
)


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
def exact_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a line wait for its twins from other processes, however late they come.

    By default it waits half a second, so that on a busy machine `[0-3] x` may become two lines.
    Those waits have unit tests.
    """
    monkeypatch.setitem(
        merge_output.StreamMerger.__init__.__kwdefaults__, "grace_seconds", PATIENT_SECONDS
    )
    for name in ("ROW_SECONDS", "IN_STEP_GRACE_SECONDS"):
        monkeypatch.setattr(merge_output, name, PATIENT_SECONDS)


@pytest.fixture
def patient_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the notebook wait for what processes tell of themselves, however late that comes.

    For tests in which all processes answer: of one that is stopped or dead it would wait in vain.
    """
    for module, name in (
        (sentinels, "ANSWER_SECONDS"),
        (statistics, "WAIT_SECONDS"),
        (reach, "TOLD_SECONDS"),
        (results, "DIGEST_SECONDS"),
    ):
        monkeypatch.setattr(module, name, PATIENT_SECONDS)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Hosts]:
    """Two hosts with Slurm."""
    if reason := cannot_slurm():
        pytest.skip(reason)
    with two_nodes() as hosts:
        yield hosts


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
