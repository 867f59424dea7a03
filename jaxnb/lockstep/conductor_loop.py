"""The conductor's loop: packets in, decisions out; one thread, no clock but for when to press.

Each process has one connection, which is its life: when it ends, the process is taken for dead.
"""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections.abc import Iterable

from jaxnb.lockstep import wire
from jaxnb.lockstep.conductor import Conductor, Decision
from jaxnb.lockstep.connections import Connection, Door, HungUpError
from jaxnb.lockstep.messages import Answer, Press, Stop
from jaxnb.lockstep.presses import Asker

LOG = logging.getLogger(__name__)

PRESS_SECONDS = 0.1
"""Who says no word for so long after an interrupt is pressed: most have stopped by then."""

TELL_SECONDS = 1.0
"""Who was stopped waits so long at most for what others, still at work, were about to dispatch."""


class Loop:
    """Serves one group until it is told to stop.

    Args:
        door: Where processes connect; closed at the end.
        num_processes: Size of the group.
        presses: Has processes sent SIGINT; closed at the end.
    """

    def __init__(self, door: Door, num_processes: int, presses: Asker) -> None:
        self._door = door
        self._signals = presses
        self._conductor = Conductor(num_processes)
        self._packets = wire.Packets(num_processes)
        self._selector = selectors.DefaultSelector()
        self._selector.register(door, selectors.EVENT_READ)
        self._selector.register(presses, selectors.EVENT_READ)
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._connections: dict[int, Connection] = {}
        self._who: dict[Connection, int | None] = {}
        self._presses: dict[int, float] = {}  # when which process is pressed
        self._pressed: dict[int, list[Answer]] = {}  # asked for: what is told once it was made
        self._held_up: dict[int, float] = {}  # until when who was stopped waits for others

    def stop(self) -> None:
        """Ends :meth:`run`; from any thread."""
        self._wake.send(b"x")

    def run(self) -> None:
        """Serves; returns after :meth:`stop`."""
        while True:
            for key, _ in self._selector.select(self._until_due()):
                if key.fileobj is self._woken:
                    self._close()
                    return
                if key.fileobj is self._door:
                    self._accept()
                elif key.fileobj is self._signals:
                    self._hear_pressed()
                elif key.data in self._who:
                    self._read(key.data)
            self._press_due()
            self._tell_due()

    def _until_due(self) -> float | None:
        if not (self._presses or self._held_up):
            return None
        due = min([*self._presses.values(), *self._held_up.values()])
        return max(0.0, due - time.monotonic())

    def _tell_due(self) -> None:
        """Has those told why they were stopped who have waited long for others to tell more."""
        stops = self._conductor.held_up()
        if not (stops or self._held_up):
            return
        now = time.monotonic()
        self._held_up = {n: self._held_up.get(n, now + TELL_SECONDS) for n in stops}
        if due := [n for n, at in self._held_up.items() if at <= now]:
            self._carry_out(self._conductor.explain_now(due))
            self._held_up = {n: at for n, at in self._held_up.items() if n not in due}

    def _press_due(self) -> None:
        """Has those pressed whose time has come; again, as long as a process is to be stopped.

        A signal that reaches it while it makes what it was let make raises nothing there.
        """
        now = time.monotonic()
        for process, at in list(self._presses.items()):
            if at > now:
                continue
            del self._presses[process]
            if process in self._pressed:
                self._presses[process] = now + PRESS_SECONDS
            elif process in self._connections and self._conductor.claim_signal(process):
                if self._signals.ask(process):
                    self._pressed[process] = []
                self._presses[process] = now + PRESS_SECONDS

    def _hear_pressed(self) -> None:
        """Tells those who were pressed what they were not to hear before the signal."""
        for process in self._signals.made():
            self._carry_out(self._pressed.pop(process, ()))
        if self._signals.have_ended:
            self._selector.unregister(self._signals)

    def _close(self) -> None:
        for connection in self._who:
            connection.close()
        self._door.close()
        self._signals.close()
        self._wake.close()
        self._woken.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            connection = self._door.accept()
        except OSError as error:  # so many files are open, say
            LOG.warning("could not accept a connection: %s", error)
            return
        if connection is not None:
            self._who[connection] = None
            self._selector.register(connection, selectors.EVENT_READ, connection)

    def _read(self, connection: Connection) -> None:
        try:
            for packet in connection.arrived():
                if connection not in self._who:
                    return  # what it said before has ended it
                said = self._packets.unpack(packet)
                if isinstance(said, wire.Ask):
                    # Never waits: who asks may not read.
                    connection.offer(wire.pack_waits(self._conductor.waits()))
                else:
                    self._carry_out(self._take(connection, said))
        except HungUpError:
            self._forget(connection)
        except (wire.WireError, OSError) as error:
            LOG.warning("ended a connection: %s", error)
            self._forget(connection)

    def _take(self, connection: Connection, said: wire.Said) -> list[Decision]:
        if isinstance(said, wire.Interrupt):
            return self._conductor.interrupt(said.cell)
        who = self._who[connection]
        match said:
            case wire.Hello(process) if who is None and process not in self._connections:
                self._who[connection], self._connections[process] = process, connection
                return []
            case wire.Say(token, lane, word, text) if who is not None and who in word.participants:
                return self._conductor.say(who, token, lane, word, text)
            case wire.Withdraw(token) if who is not None:
                return self._conductor.withdraw(who, token)
            case wire.Explain(token, number, text) if who is not None:
                return self._conductor.explain(who, token, number, text)
            case wire.Begin(cell, members) if who is not None and who in members:
                return self._conductor.begin(who, cell, members)
            case wire.Leave(end) if who is not None:
                return self._conductor.leave(who, end)
            case wire.InterruptRaised() if who is not None:
                return self._conductor.interrupt_raised(who)
            case wire.InterruptHandled() if who is not None:
                return self._conductor.interrupt_handled(who)
            case wire.InterruptHeld() if who is not None:
                return self._conductor.interrupt_held(who)
        raise wire.WireError(f"process {who} cannot say {said}")

    def _forget(self, connection: Connection) -> None:
        """Ends a connection; the process whose it was is dead."""
        self._selector.unregister(connection)
        connection.close()
        process = self._who.pop(connection)
        if process is not None:
            self._connections.pop(process, None)
            self._pressed.pop(process, None)
            self._carry_out(self._conductor.die(process))

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        for each in decisions:
            if isinstance(each, Press):
                self._presses[each.process] = time.monotonic() + PRESS_SECONDS
                continue
            if each.process in self._pressed and is_interrupt(each):
                # The signal must have come by then: it would strike what goes on after that.
                self._pressed[each.process].append(each)
                continue
            connection = self._connections.get(each.process)
            if connection is None:
                continue  # it has just ended: its end is the next event
            try:
                connection.send(wire.pack_answer(each.token, each.what))
            except ConnectionError:
                pass  # likewise
            except OSError as error:  # too long for the system: one process, and not the group
                LOG.warning("ended a connection: %s", error)
                self._forget(connection)


def is_interrupt(answer: Answer) -> bool:
    """Whether a thread is told that its cell is interrupted."""
    return isinstance(answer.what, Stop) and answer.what.kind == "interrupted"
