"""What the tests of faults have in common: a group for a whole file, and waits without a clock."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jaxnb.arrays.moving import no_meter
from jaxnb.cells import sinks
from jaxnb.cells.sinks import NoSink
from jaxnb.errors import CellError, JaxnbError
from jaxnb.model.cells import CheckRequest
from jaxnb.model.group import Waits
from jaxnb.recovery.messages import Recovered
from jaxnb.session import Session, panel
from jaxnb.wire import client, messages
from jaxnb.wire.messages import digest
from support.fixtures import (
    CLEAR,
    PATIENT_SECONDS,
    LostVariablesError,
    WrongNumbersError,
    until,
)
from support.hosts import Hosts
from support.remote import Program


def cleared(session: Session) -> Session:
    """Returns the group of a file as if it were fresh: without variables, and with fresh processes
    if a test has hurt it."""
    session.meter = no_meter
    try:
        session.run(CLEAR, timeout=PATIENT_SECONDS)
    except JaxnbError:
        session.restart()
    return session


def show_waits_soon(patch: pytest.MonkeyPatch) -> None:
    """Has the panel look more often, and show after a second where processes are."""
    patch.setattr(panel, "LOOK_SECONDS", 0.1)
    patch.setattr(panel, "WAIT_SECONDS", 1.0)
    patch.setattr(panel, "QUIET_SECONDS", 1.0)
    patch.setattr(sinks, "STILL_SECONDS", 1.0)


def assert_kept(session: Session, code: str, value: object = None) -> None:
    """Fails unless a cell that looks at variables finds them as they have to be.

    Args:
        session: The group.
        code: Raises AssertionError where a variable is not what it was.
        value: What the cell's value has to be.
    """
    try:
        found = session.run(code, timeout=PATIENT_SECONDS).value
    except CellError as error:
        raise LostVariablesError(str(error)) from error
    if found != value:
        raise WrongNumbersError(f"{found} where {value} was to be computed")


def answer_to_forged(session: Session, frames: list[Any], signed: list[Any]) -> object:
    """Returns what process 0 answers to a request whose buffers are not those that were signed."""
    transport, exchange = session._life.transport, messages.Exchange()

    def digest_of(*buffers: Any) -> str:
        return digest(*(signed if list(buffers) == frames else buffers))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "dump", lambda _: frames)
        patch.setattr(client, "digest", digest_of)
        transport.send_to(exchange, 0, CheckRequest())
    reply = exchange.get(PATIENT_SECONDS)
    assert isinstance(reply, messages.Reply)
    return reply.answer


def missing(recovered: Recovered, *which: int) -> dict[str, str]:
    """Returns what processes that replace others do not have, and why."""
    return {lost.path: lost.reason for lost in recovered.lost if lost.processes == which}


def without_replica(recovered: Recovered) -> set[str]:
    """Returns the arrays of which nobody else had a replica."""
    return {lost.path for lost in recovered.lost if "nobody else had a replica" in lost.reason}


class OnWaits(NoSink):
    """Calls something once it is shown that processes wait; keeps what is told.

    Args:
        call: Called then.
    """

    def __init__(self, call: Callable[[], object]) -> None:
        self.told: list[Waits] = []
        self.notices: list[str] = []
        self._call = call

    def waits(self, waits: Waits) -> None:
        """Takes what is shown."""
        self.told.append(waits)
        if len(self.told) == 1:
            self._call()

    def notice(self, text: str) -> None:
        """Keeps a sentence."""
        self.notices.append(text)


class Finger:
    """Presses Interrupt as Jupyter does, by SIGINT to this process, and never after its block.

    A SIGINT that comes late ends the whole run of pytest.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_over = False

    def __enter__(self) -> Finger:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_over = True

    def press(self) -> None:
        """Sends SIGINT, unless the block has ended."""
        with self._lock:
            if not self._is_over:
                os.kill(os.getpid(), signal.SIGINT)


@contextlib.contextmanager
def pressing_beside(press: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    """Runs a function in a thread beside the block; what it gets presses Interrupt.

    The thread has ended when the block is left, and nothing is pressed after that.
    """
    with Finger() as finger:
        thread = threading.Thread(target=press, args=(finger.press,))
        thread.start()
        try:
            yield
        finally:
            finger.__exit__()
            thread.join()


def begin_loop(program: Program, hosts: Hosts) -> None:
    """Has a cell run that does not end, after :data:`CELL`, and waits until it runs."""
    runs = hosts.shared / "runs"
    runs.unlink(missing_ok=True)
    cell = f"open({str(runs)!r}, 'w').close()\nwhile True: total(x)"
    program.begin(f"session.run({cell!r})")
    until(runs.exists, "the cell runs")
