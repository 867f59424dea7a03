"""Names, attributes and documentation of this process's objects, while somebody types.

Asked through the sentinel, so that a main thread in a cell is no obstacle. IPython's own completer
and inspector answer, in a thread of their own: an object's ``__dir__`` or ``__repr__`` may block
for ever, and the sentinel has other questions to answer.
"""

from __future__ import annotations

import builtins
import itertools
import keyword
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial, wraps
from types import ModuleType
from typing import Any, TypeVar

import jax
import numpy as np
from IPython.core.completer import IPCompleter, completions_sorting_key

from jaxnb.arrays.process_describe import mesh_and_spec
from jaxnb.cells.process_output import bounded
from jaxnb.compat.ipython import described, found_object, matches
from jaxnb.labels import MAGICS, format_bytes
from jaxnb.lockstep.process_interrupts import only_looking
from jaxnb.profile.process_stats import quickly_back
from jaxnb.wire.messages import printable
from jaxnb.wire.process_sentinel import ThisProcess

ANSWER_SECONDS = 0.08
"""Who types waits no longer, and the sentinel neither."""

MOST_AT_ONCE = 4
"""So many looks may be stuck in an object's code; then nothing more is looked at."""

MAX_LINE = 2000
"""Nothing fits into a longer line: IPython's completer takes 0.7 s for one of 10 000 characters,
and 50 s for one of 100 000."""

MAX_NAMES = 2000

MAX_WORDS = 500
"""As many as IPython shows."""

OF_IPYTHON = {"In", "Out", "exit", "quit", "get_ipython", "open"}

_OF_PYTHON = {*dir(builtins), *keyword.kwlist}

LONG = 1000
"""The string form of a longer container is not made: that of a list of millions takes seconds."""

_Found = TypeVar("_Found")

_looks: list[threading.Thread] = []


def complete(process: ThisProcess, code: str, offset: int) -> tuple[int, dict[str, str]] | None:
    """Returns what fits at a place of a cell's code; None where that takes too long.

    Guarantees that no function of the user's is called, but what Python calls to look at an object
    (``__dir__``, and what dicts and IPython have for keys), and that nothing is dispatched to
    several processes.

    Args:
        process: This process.
        code: The code.
        offset: The place.

    Returns:
        Where in the code the words begin (what is typed from there on is replaced); and the words,
        with what each is: ``"variable"``, ``"attribute"``, ``"path"``, …
    """
    found = _in_time(lambda: _completed(process.shell, code, offset))
    _warm_up(process.shell)
    return found


def inspect(process: ThisProcess, name: str, detail: int) -> dict[str, str] | None:
    """Returns what IPython tells of an object; None where that takes too long.

    Args:
        process: This process.
        name: Its name, maybe with attributes.
        detail: 1 for its source, too.
    """
    return _in_time(lambda: _inspected(process.shell, name, detail))


def names(process: ThisProcess) -> tuple[str, ...]:
    """Returns the names of this process's variables."""
    known = (each for each in list(process.shell.user_ns) if isinstance(each, str))
    found = [each for each in known if not each.startswith("_") and each not in OF_IPYTHON]
    return tuple(printable(each) for each in found[-MAX_NAMES:])


def _in_time(look: Callable[[], _Found]) -> _Found | None:
    """Returns what a look finds; None if it fails, is not over soon, or too many are not over."""
    _looks[:] = [each for each in _looks if each.is_alive()]
    if len(_looks) >= MOST_AT_ONCE:
        return None
    found: list[_Found] = []

    def run() -> None:
        try:
            with only_looking():
                found.append(look())
        except BaseException:  # the user's objects may raise anything; nothing is known then
            return

    thread = threading.Thread(target=run, name="jaxnb-assist", daemon=True)
    _looks.append(thread)
    with quickly_back():
        thread.start()
        thread.join(ANSWER_SECONDS)
    return found[0] if found else None


# ---------------------------------------------------------------------- completions


def _completed(shell: Any, code: str, offset: int) -> tuple[int, dict[str, str]]:
    line = code[code.rfind("\n", 0, offset) + 1 : offset]
    if len(line) > MAX_LINE:
        return offset, {}
    completer = _QuietCompleter(  # type: ignore[no-untyped-call]
        shell=shell,
        namespace={name: each for name, each in shell.user_ns.copy().items() if type(name) is str},
        global_namespace={},
        use_jedi=False,
        evaluation="limited",
    )
    start, words = _arranged(code, offset, matches(completer, code, offset).values())
    return start, dict(sorted(words.items(), key=lambda item: _rank(item[0], shell.user_ns)))


def _rank(word: str, known: Mapping[str, Any]) -> int:
    """Returns where a word stands: arrays first, then the user's other names, modules, Python's."""
    value = known.get(word)
    if isinstance(value, jax.Array | np.ndarray):
        return 0
    return 3 if word in _OF_PYTHON else 2 if isinstance(value, ModuleType) else 1


class _QuietCompleter(IPCompleter):
    """IPython's completer; of what fails in an object's code nothing is printed.

    It keeps what it is asked in attributes: each question has one of its own.
    """

    @property
    def matchers(self) -> list[Any]:
        """All matchers."""
        return [_quiet(each) for each in super().matchers]


def _quiet(matcher: Any) -> Any:
    @wraps(matcher)
    def match(asked: Any) -> Any:
        try:
            return matcher(asked)
        except BaseException:
            is_new = getattr(matcher, "matcher_api_version", 1) == 2
            return {"completions": [], "suppress": False} if is_new else []

    return match


def _arranged(code: str, offset: int, found: Iterable[Any]) -> tuple[int, dict[str, str]]:
    """Returns where the words of IPython's matchers begin, and the words with what each is."""
    results = [
        (offset - len(each["matched_fragment"]), each, list(each["completions"])) for each in found
    ]
    start = min((place for place, _, inside in results if inside), default=offset)
    asks_for_magics = code[:offset].rpartition("\n")[2].lstrip().startswith("%")
    words: dict[str, str] = {}
    for place, each, inside in results:
        if not each.get("ordered"):
            inside.sort(key=lambda one: completions_sorting_key(one.text))
        for one in inside:
            if one.type == "magic" and (not asks_for_magics or one.text.lstrip("%") in MAGICS):
                continue  # jaxnb's only say here that they belong into the notebook
            words.setdefault(printable(code[start:place] + one.text), str(one.type or "unknown"))
    return start, dict(itertools.islice(words.items(), MAX_WORDS))


# ---------------------------------------------------------------------- documentation


@cache
def _warm_up(shell: Any) -> None:
    """Has what IPython uses for its first text on a function made, which takes 0.1 s and more."""
    look = partial(_inspected, shell, "help", 0)
    threading.Thread(target=look, name="jaxnb-assist", daemon=True).start()


def _inspected(shell: Any, name: str, detail: int) -> dict[str, str]:
    info = found_object(shell, name)
    if not info.found:
        return {}
    shows = _is_quickly_printed(info.obj)
    bundle = described(shell, name, info, detail, 0 if shows else detail + 1)
    data = {kind: text for kind, text in bounded(bundle).items() if isinstance(text, str)}
    if not shell.enable_html_pager:
        data.pop("text/html", None)
    if isinstance(info.obj, jax.Array):
        data["text/plain"] = f"{_described(info.obj)}\n{data.get('text/plain', '')}"
    return data


def _is_quickly_printed(value: Any) -> bool:
    """Whether to print an object may be tried: an array may have to be computed first."""
    if isinstance(value, jax.Array):
        return False
    is_container = isinstance(value, list | tuple | dict | set | frozenset | str | bytes)
    return not is_container or len(value) <= LONG


def _described(array: jax.Array) -> str:
    """Returns what is known of an array that need not be there yet."""
    _, spec = mesh_and_spec(array.sharding)
    shape = ", ".join(map(str, array.shape))
    return f"{array.dtype.name}[{shape}] · {spec or array.sharding} · {format_bytes(array.nbytes)}"
