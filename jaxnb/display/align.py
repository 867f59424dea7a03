"""Pure: which of the processes' queued lines belong together, and which may be shown now."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

LOOK_AHEAD = 256
"""How many queued lines of each process are compared with those of the others."""

_COMPACT_AT = 4096


def together(lines: Iterable[str]) -> list[str]:
    """Returns lines that came at once, with those that belong together in one text.

    They are those that are indented deeper than the first of them: the rows of a printed array, a
    traceback, a program; and empty lines between these.
    """
    found: list[list[str]] = []
    empty: list[str] = []
    first = 0
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if indent == len(line):
            empty.append(line)
        elif found and indent > first:
            found[-1] += [*empty, line]
            empty = []
        else:
            found += [*([each] for each in empty), [line]]
            empty, first = [], indent
    return ["\n".join(each) for each in (*found, *([each] for each in empty))]


class LineQueue:
    """Lines of one process that have arrived and were not shown yet.

    Those that belong together are one item, and are shown together.

    Attributes:
        process_index: The process.
        finished: It will write nothing more.
    """

    __slots__ = ("_head", "_items", "_times", "finished", "process_index")

    def __init__(self, process_index: int) -> None:
        self.process_index = process_index
        self.finished = False
        self._items: list[str] = []
        self._times: list[float] = []
        self._head = 0

    def __len__(self) -> int:
        return len(self._items) - self._head

    def extend(self, items: Sequence[str], now: float) -> None:
        """Appends lines that arrived at ``now``."""
        self._items += items
        self._times += [now] * len(items)

    def peek(self, start: int, count: int) -> list[str]:
        """Returns ``count`` lines, or those there are, after skipping ``start``."""
        return self._items[self._head + start : self._head + start + count]

    def pop(self, count: int) -> None:
        """Removes the first ``count`` lines."""
        self._head += count
        if self._head > _COMPACT_AT and self._head * 2 > len(self._items):
            del self._items[: self._head], self._times[: self._head]
            self._head = 0

    def take_back(self) -> str | None:
        """Removes the newest line and returns it; None if all have been shown."""
        if not len(self):
            return None
        rest, has_more, line = self._items.pop().rpartition("\n")
        if has_more:
            self._items.append(rest)
        else:
            del self._times[-1]
        return line

    def expired(self, cutoff: float) -> int:
        """Returns how many lines arrived at ``cutoff`` or before."""
        return bisect_right(self._times, cutoff, self._head) - self._head


def common_prefix(queues: Sequence[LineQueue]) -> int:
    """Returns how many lines at the head of all queues are the same, in order."""
    first, *others = queues
    limit = min(len(queue) for queue in queues)
    agreed, block = 0, 64
    while agreed < limit and block:
        size = min(block, limit - agreed)
        lines = first.peek(agreed, size)
        if all(queue.peek(agreed, size) == lines for queue in others):
            agreed += size
            block *= 2
        else:
            limit = agreed + size - 1
            block = size // 2
    return agreed


class Alignment:
    """One look at the heads of all queues, and what it lets be shown.

    A line that only one process has in sight is *private*; lines that several have are
    *shared* and are anchors: what stands before an anchor in one queue is shown first, so
    that the anchor is shown once for all.

    A line may be shown when no other process can still say it: each other process either
    ended, or has an anchor in common with what follows the line. Otherwise it may be shown
    once it has expired.
    """

    def __init__(
        self,
        queues: Sequence[LineQueue],
        cutoff: float,
        row_cutoff: float,
        emit: Callable[[tuple[int, ...], str], None],
    ) -> None:
        """Looks at ``queues``: all that hold lines or may still get some.

        Args:
            queues: The queues, by process index.
            cutoff: Lines that arrived then or before have waited long enough.
            row_cutoff: Where every process has a line of its own at its head, those that
                arrived then or before make a row and wait no longer.
            emit: Called for each line shown with the positions in ``queues`` of who said it.
        """
        self._queues = queues
        self._emit = emit
        self._lines = [queue.peek(0, LOOK_AHEAD) for queue in queues]
        self._expired = [queue.expired(cutoff) for queue in queues]
        self._at = [0] * len(queues)
        self._places: dict[str, dict[int, list[int]]] = {}
        self._anchors: list[list[int]] = []
        self._full_rows = 0
        self._row_expired = [queue.expired(row_cutoff) for queue in queues]
        counts = Counter[str]()
        for lines in self._lines:
            counts.update(set(lines))
        shared = {item for item, count in counts.items() if count > 1}
        for p, lines in enumerate(self._lines):
            anchors = [i for i, item in enumerate(lines) if item in shared] if shared else []
            for i in anchors:
                self._places.setdefault(lines[i], {}).setdefault(p, []).append(i)
            self._anchors.append(anchors)

    def run(self) -> bool:
        """Shows what may be shown and takes it off the queues; returns whether any was."""
        while self._step() and not self._used_up():
            pass
        for queue, count in zip(self._queues, self._at, strict=True):
            queue.pop(count)
        return any(self._at)

    def _used_up(self) -> bool:
        return any(
            len(lines) == LOOK_AHEAD and at > LOOK_AHEAD // 2
            for lines, at in zip(self._lines, self._at, strict=True)
        )

    def _next_anchor(self, p: int, start: int) -> int | None:
        anchors = self._anchors[p]
        i = bisect_left(anchors, start)
        return anchors[i] if i < len(anchors) else None

    def _place(self, p: int, item: str) -> int | None:
        places = self._places[item].get(p, ())
        i = bisect_left(places, self._at[p])
        return places[i] if i < len(places) else None

    def _may_follow(self, p: int, after: int, said_by: Sequence[int]) -> bool:
        """Whether a process outside ``said_by`` could still say the line before ``after``."""
        anchor = self._next_anchor(p, after)
        for q, queue in enumerate(self._queues):
            if queue.finished or q in said_by:
                continue
            if anchor is None or self._place(q, self._lines[p][anchor]) is None:
                return True
        return False

    def _step(self) -> bool:
        runs = self._private_runs()
        heads = self._heads()
        for item, said_by in heads.items():
            if runs and runs[0][0] < said_by[0]:
                break
            if self._is_decided(item, said_by):
                return self._show(item, said_by)
        if runs:
            return self._show_runs(runs)
        forced = self._forced(heads)
        return forced is not None and self._show(forced, heads[forced])

    def _private_runs(self) -> list[tuple[int, int]]:
        """Returns positions and ends of the private lines that may be shown."""
        counts = [self._private_count(p) for p in range(len(self._queues))]
        self._full_rows = min(
            (c for c, q in zip(counts, self._queues, strict=True) if c or not q.finished),
            default=0,
        )
        ends = {p: self._private_end(p) for p in range(len(self._queues))}
        waiting = {
            p
            for p, stop in ends.items()
            if max(self._at[p], self._expired[p]) < stop and self._may_follow(p, self._at[p], (p,))
        }
        runs: list[tuple[int, int]] = []
        for p, end in ends.items():
            at, expired = self._at[p], self._expired[p]
            if waiting and p not in waiting:
                # No other can say it, but lines of others wait for this process: with them it
                # makes a row.
                expired = max(expired, self._row_expired[p])
            stop = min(end, max(expired, at + self._full_rows)) if waiting else end
            if stop > at:
                runs.append((p, stop))
        return runs

    def _private_end(self, p: int) -> int:
        """Returns where the private lines at the head of a queue end."""
        anchor = self._next_anchor(p, self._at[p])
        return len(self._lines[p]) if anchor is None else anchor

    def _private_count(self, p: int) -> int:
        return max(0, min(self._private_end(p), self._row_expired[p]) - self._at[p])

    def _show_runs(self, runs: list[tuple[int, int]]) -> bool:
        # Row by row: line k of one process mostly corresponds to line k of another.
        for k in range(max(stop - self._at[p] for p, stop in runs)):
            for p, stop in runs:
                if self._at[p] + k < stop:
                    self._emit((p,), self._lines[p][self._at[p] + k])
        for p, stop in runs:
            self._at[p] = stop
        return True

    def _heads(self) -> dict[str, list[int]]:
        heads: dict[str, list[int]] = {}
        for p, lines in enumerate(self._lines):
            if self._at[p] < len(lines):
                heads.setdefault(lines[self._at[p]], []).append(p)
        return heads

    def _show(self, item: str, said_by: Sequence[int]) -> bool:
        self._emit(tuple(said_by), item)
        for p in said_by:
            self._at[p] += 1
        return True

    def _has_expired(self, said_by: Sequence[int]) -> bool:
        return any(self._at[p] < self._expired[p] for p in said_by)

    def _is_decided(self, item: str, said_by: Sequence[int]) -> bool:
        """Whether this shared line, at the head of ``said_by``, needs no more waiting."""
        places = self._places.get(item)
        if places is None or any(
            q not in said_by and self._place(q, item) is not None for q in places
        ):
            return False
        after = self._at[said_by[0]] + 1
        return self._has_expired(said_by) or not self._may_follow(said_by[0], after, said_by)

    def _forced(self, heads: dict[str, list[int]]) -> str | None:
        """Returns the head to show although others wait for it further back.

        Every head waits: for grace, or for lines in front of its twin in another queue. The
        anchor with most processes, then with the fewest lines in front of it, is worth most.
        """
        best: tuple[int, int] | None = None
        in_front = 0
        for item, said_by in heads.items():
            places = {q: self._place(q, item) for q in self._places.get(item, ())}
            depths = {
                q: at - self._at[q]
                for q, at in places.items()
                if at is not None and q not in said_by
            }
            known = len(depths) + len(said_by)
            if not depths or not (known == len(self._queues) or self._has_expired(said_by)):
                continue
            rank = (known, -sum(depths.values()))
            if best is None or rank >= best:
                best, in_front = rank, min(depths)
        return None if best is None else self._lines[in_front][self._at[in_front]]
