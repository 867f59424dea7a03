"""What several hosts answer, as one answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from jaxnb.errors import SessionBrokenError


def merge(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns several answers as one: lists are joined, and of other values the first counts."""
    merged: dict[str, Any] = {}
    for answer in answers:
        for name, value in answer.items():
            if isinstance(value, list) and name in merged:
                merged[name] = merged[name] + value
            else:
                merged.setdefault(name, value)
    return merged


def joined(
    asked: Mapping[str, Future[Any]],
    read: Callable[[dict[str, Any]], Any],
    *,
    spared: bool,
) -> Future[Any]:
    """Returns a future of what several hosts answer, without a thread of its own.

    Args:
        asked: Each host's answer.
        read: Makes the result of all answers as one.
        spared: Hosts whose agents have ended are left out, unless all have.
    """
    result: Future[Any] = Future()
    result.set_running_or_notify_cancel()
    left = len(asked)
    lock = threading.Lock()

    def done(_: Future[Any]) -> None:
        nonlocal left
        with lock:
            left -= 1
            is_last = left == 0
        if is_last:
            finish()

    def finish() -> None:
        errors = {host: each.exception() for host, each in asked.items() if each.exception()}
        lost = [error for error in errors.values() if isinstance(error, SessionBrokenError)]
        answers = [each.result() for host, each in asked.items() if host not in errors]
        is_enough = spared and len(lost) == len(errors) and (answers or not errors)
        if errors and not is_enough:
            result.set_exception(next(iter(errors.values())))
            return
        try:
            result.set_result(read(merge(answers)))
        except Exception as error:  # for who waits for it
            result.set_exception(error)

    for each in asked.values():
        each.add_done_callback(done)
    if not asked:
        finish()
    return result
