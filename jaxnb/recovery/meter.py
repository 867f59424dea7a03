"""Pure: whether something computes, as the system counts its processor time."""

from __future__ import annotations


class Meter:
    """Tells for how long something has used less than a share of a processor.

    Args:
        share: Who computes uses more; what waits, and is looked at meanwhile, uses less.
        now: The time.
        cpu_seconds: The processor time that it has used so far.
    """

    def __init__(self, share: float, now: float, cpu_seconds: float) -> None:
        self._share = share
        self.note(now, cpu_seconds)

    def note(self, now: float, cpu_seconds: float) -> None:
        """Takes it for at work now, whatever it has used."""
        self._at, self._cpu_seconds = now, cpu_seconds

    def idle_seconds(self, now: float, cpu_seconds: float) -> float:
        """Returns for how long it has not computed; to be asked often.

        Args:
            now: The time.
            cpu_seconds: The processor time that it has used so far.
        """
        if cpu_seconds - self._cpu_seconds > self._share * (now - self._at):
            self.note(now, cpu_seconds)
        return now - self._at
