"""Pure: the chunks of one text stream to its lines, as a terminal would leave them."""

from __future__ import annotations

import re
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


_CONTROL = re.compile(r"(\r|\n|\x08|\x1b\[[0-?]*[ -/]*[@-~])")
_PART_OF_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*)?\Z")
_MAX_ESCAPE = 64
_MAX_ROWS = 256
_MAX_COLUMNS = 10_000


def _nothing() -> str | None:
    return None


class LineAssembler:
    r"""Lines of one stream of one process, whatever the chunks they arrive in.

    Understands what progress bars write: ``\r``, ``\b``, cursor up and down
    (``ESC [ A``, ``ESC [ B``) and erasing in the line (``ESC [ K``). Colours stay in the
    text; other control sequences are dropped.

    A line is complete at its newline, unless the stream has moved the cursor up before: then
    the lines that it can reach again (as many as it went up) are held until it is past them,
    which a line that was never rewritten tells.

    As in a terminal, what is rewritten is no wider than the screen: a line of more than
    10 000 characters stays as it is, and what would rewrite it begins another. To copy it for
    each character that a bar moves back would take hours.
    """

    def __init__(self) -> None:
        self._rows = [""]
        self._rewritten = [False]
        self._row = 0
        self._column = 0
        self._reach = 0
        self._escape = ""
        # Pieces of a line that grows chunk by chunk; joined late, as joining each time
        # would take quadratic time.
        self._pieces: list[str] = []
        self._done: list[str] = []

    def feed(self, text: str, take_back: Callable[[], str | None] = _nothing) -> list[str]:
        """Takes a chunk and returns the lines it completed, without their newlines.

        Args:
            text: The chunk.
            take_back: Called when the cursor moves up into a line already returned by an
                earlier call; returns that line if it has not been shown yet, else None.
        """
        if self._escape:
            text, self._escape = self._escape + text, ""
        if not ("\r" in text or "\x1b" in text or "\b" in text) and self._is_plain():
            return self._feed_plain(text)
        self._settle()
        if (part := _PART_OF_ESCAPE.search(text)) and len(text) - part.start() < _MAX_ESCAPE:
            self._escape = part.group()
            text = text[: part.start()]
        pieces = _CONTROL.split(text)
        for i, piece in enumerate(pieces):
            if not piece:
                continue
            if i % 2 == 0:
                self._write(piece)
            else:
                self._control(piece, take_back)
        done, self._done = self._done, []
        return done

    def finish(self) -> list[str]:
        """Ends the stream and returns what was still open; a bar that was cleared is not."""
        self._settle()
        rows = [self._finished_row(i) for i in range(len(self._rows))]
        kept = [row for row, again in zip(rows, self._rewritten, strict=True) if row or not again]
        if kept and not kept[-1]:
            kept.pop()
        self._reset()
        return kept

    def open_rows(self) -> list[str]:
        """Returns the lines still being written, from top to bottom, blank ones left out."""
        self._settle()
        return [row.rstrip() for row in self._rows if row.strip()]

    def _is_plain(self) -> bool:
        return len(self._rows) == 1 and self._column == len(self._rows[0])

    def _feed_plain(self, text: str) -> list[str]:
        lines = text.split("\n")
        if len(lines) == 1:
            self._pieces.append(text)
            return []
        self._settle()
        self._write(lines[0])
        lines[0] = self._finished_row(0)
        self._reset()
        if lines[-1]:
            self._pieces.append(lines[-1])
        lines.pop()
        return lines

    def _reset(self) -> None:
        self._rows, self._rewritten = [""], [False]
        self._row = self._column = self._reach = 0

    def _settle(self) -> None:
        if self._pieces:
            text = "".join(self._pieces)
            self._pieces.clear()
            self._write(text)

    def _finished_row(self, row: int) -> str:
        # Bars pad with blanks to cover what they were before.
        return self._rows[row].rstrip() if self._rewritten[row] else self._rows[row]

    def _write(self, text: str) -> None:
        if self._column != len(self._rows[self._row]):
            self._wrap()
        row, column = self._rows[self._row], self._column
        if column == len(row):
            row += text
        elif "\x1b" in row or "\x1b" in text:
            # Colours take no columns, so what is overwritten cannot be counted.
            row = row[:column] + text
        else:
            row = row.ljust(column)[:column] + text + row[column + len(text) :]
        self._rows[self._row] = row
        self._column = column + len(text)

    def _wrap(self) -> None:
        """Leaves a line that is too long to be rewritten, and begins one below it."""
        if len(self._rows[self._row]) > _MAX_COLUMNS:
            self._row += 1
            self._column = 0
            self._rows.insert(self._row, "")
            self._rewritten.insert(self._row, False)

    def _control(self, control: str, take_back: Callable[[], str | None]) -> None:
        if control == "\n":
            self._newline()
        elif control == "\r":
            self._column = 0
            self._rewritten[self._row] = True
        elif control == "\b":
            self._column = max(0, self._column - 1)
            self._rewritten[self._row] = True
        elif control[-1] == "m":
            self._write(control)
        elif control[-1] == "K":
            self._erase(control[2:-1])
        elif control[-1] in "AB":
            digits = control[2:-1]
            count = min(int(digits), _MAX_ROWS) if digits.isdecimal() else 1
            for _ in range(count or 1):
                if control[-1] == "A":
                    self._up(take_back)
                elif self._row + 1 < len(self._rows):
                    self._row += 1

    def _erase(self, mode: str) -> None:
        if mode in ("1", "2") or self._column != len(self._rows[self._row]):
            self._wrap()
        row = self._rows[self._row]
        if mode == "2":
            row = ""
        elif mode == "1":
            row = " " * min(self._column, len(row)) + row[self._column :]
        else:
            row = row[: self._column]
        self._rows[self._row] = row
        self._rewritten[self._row] = True

    def _newline(self) -> None:
        last = self._row + 1 == len(self._rows)
        if last and not self._rewritten[self._row]:
            self._done += [self._finished_row(i) for i in range(len(self._rows))]
            self._reset()
            return
        self._row += 1
        self._column = 0
        if last:
            self._rows.append("")
            self._rewritten.append(False)
        passed = self._row - self._reach
        if passed > 0:
            self._done += [self._finished_row(i) for i in range(passed)]
            del self._rows[:passed], self._rewritten[:passed]
            self._row -= passed

    def _up(self, take_back: Callable[[], str | None]) -> None:
        if self._row > 0:
            self._row -= 1
        elif len(self._rows) < _MAX_ROWS:
            row = self._done.pop() if self._done else take_back()
            self._rows.insert(0, row or "")
            self._rewritten.insert(0, True)
        self._rewritten[self._row] = True
        self._reach = max(self._reach, len(self._rows) - 1 - self._row)
