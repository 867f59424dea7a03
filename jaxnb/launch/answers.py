"""What several agents answer, as one answer; and paths in it as another host has them."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any
from urllib.parse import quote

from jaxnb.errors import SessionBrokenError, StartError
from jaxnb.launch.member import Member

ANSWER_SECONDS = 60.0
"""So long one host may take to answer."""

STEP_SECONDS = 0.1
"""So often what waits for an answer may be ended."""


def translated(value: Any, old: str, new: str) -> Any:
    """Returns plain data in which paths in one folder have become paths in another.

    Also in text that is an address (``unix:`` with its path quoted), or JSON.
    """
    if isinstance(value, str):
        forms = {form(old): form(new) for form in (str, quote, lambda path: json.dumps(path)[1:-1])}
        pattern = "|".join(map(re.escape, forms))
        return re.sub(rf"({pattern})(?![^/\s\"',;])", lambda found: forms[found[0]], value)
    if isinstance(value, Mapping):
        return {name: translated(each, old, new) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [translated(each, old, new) for each in value]
    return value


def answered(member: Member, answer: Future[Any], step: Callable[[], None] | None = None) -> Any:
    """Returns what a host answers.

    Args:
        member: The host.
        answer: Its answer.
        step: Called while it is waited for, until the host answers or is lost.

    Raises:
        StartError: It cannot do what it was asked for; the message names it.
        SessionBrokenError: It does not answer, or is lost.
    """
    while step is not None and not wait([answer], STEP_SECONDS).done:
        step()
    try:
        return answer.result(ANSWER_SECONDS)
    except TimeoutError:
        raise SessionBrokenError(member.client.silence(ANSWER_SECONDS)) from None
    except StartError as error:
        raise StartError(f"On {member.host or 'this host'} {error}") from None


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
