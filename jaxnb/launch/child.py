"""A child of the fork server, and what it wrote last."""

from __future__ import annotations

import codecs
import math
import time
from dataclasses import dataclass, field

from jaxnb.launch.deaths import ChatterFilter, DumpFilter

TAIL_BYTES = 16 << 10
"""How much of what a child wrote last is kept, to be shown when it dies."""

LAST_WORDS_SECONDS = 30.0
"""Output older than this, when more output or the death comes, says nothing about the death. XLA
aborts 20 s after it has warned of a collective that does not end."""

_decoder = codecs.getincrementaldecoder("utf-8")


@dataclass
class Child:
    """A forked process."""

    pid: int
    role: str
    index: int
    output_fd: int
    tail: bytearray = field(default_factory=bytearray)
    wrote_at: float = -math.inf
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: _decoder("replace"))
    chatter: ChatterFilter = field(default_factory=ChatterFilter)
    dump: DumpFilter = field(default_factory=DumpFilter)
    flush_at: float = math.inf
    reply_to: int | None = None
    told_to_stop: bool = False

    def last_words(self) -> str:
        """Returns what it wrote last if that was recent; older text is discarded."""
        self.forget_old_words()
        return self.tail.decode("utf-8", "replace")

    def forget_old_words(self) -> None:
        """Discards what it wrote last, unless that was recent."""
        if time.monotonic() - self.wrote_at > LAST_WORDS_SECONDS:
            self.tail.clear()
