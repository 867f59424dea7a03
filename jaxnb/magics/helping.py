"""Tab and Shift-Tab in code that runs on the processes.

Tab is a matcher of IPython's: in other cells it has nothing to say, and in these it keeps IPython's
own matchers, which know the notebook's names only, from saying anything. For Shift-Tab IPython has
no such place: the kernel's ``do_inspect`` is called for other cells, with what it was given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from IPython.core.completer import CompletionContext, SimpleCompletion, completion_matcher
from IPython.core.inputtransformer2 import HelpEnd
from IPython.utils.tokenutil import token_at_cursor

from jaxnb.assist.completion import Code, MagicLine, magic_at, place_at
from jaxnb.magics.arguments import FIRST_WORD, PARSERS, MagicParser, ranks

if TYPE_CHECKING:
    from jaxnb.session import Session


NAMES_FROM = {"spmd": 0, "spmd_pull": 0, "spmd_layout": 0, "spmd_collectives": 0, "spmd_compare": 0,
              "spmd_save": 1, "spmd_steps": 0}  # fmt: skip
"""Magics behind whose options and so many words stands what lives on the processes."""

ENDS_OPTIONS = {"spmd", "spmd_collectives", "spmd_steps"}
"""Magics behind whose options stands code, which may have words that look like options."""

_WORD = re.compile(r"\S+")


def fits(line: MagicLine, num_processes: int) -> tuple[int, dict[str, str]] | Code | None:
    """Returns what fits at a place in a magic's line.

    Args:
        line: The place.
        num_processes: How many processes there are.

    Returns:
        Where the words begin, counted from that of the text, and the words with what each is; or
        code, for a process; or None, where it is the notebook's.
    """
    if line.magic not in PARSERS:
        return None
    parser, before = PARSERS[line.magic](), line.text[: line.offset]
    words = [(found.start(), found[0]) for found in _WORD.finditer(before)]
    if not words or before[-1:].isspace():
        words.append((len(before), ""))
    *earlier, (start, word) = words
    option, others = _read(parser, earlier, ends_at_code=line.magic in ENDS_OPTIONS)
    if others and line.magic in ENDS_OPTIONS:
        return line.code(others[0])
    if option:
        return _values(parser, option, num_processes, line, start)
    name, has_value, _ = word.partition("=")
    if has_value and name in parser.options:
        return _values(parser, name, num_processes, line, start + len(name) + 1)
    if word.startswith("-"):
        given = {each for _, each in earlier}
        names = [each for each in parser.options if each not in given and each.startswith(word)]
        return start, dict.fromkeys(names, "option")
    if len(others) >= NAMES_FROM.get(line.magic, 1 << 30):
        return line.code(start)
    values = () if others else parser.offers.get(FIRST_WORD, ())
    found = {each: "value" for each in values if each.startswith(word)}
    return (start, found) if found else None


def _read(
    parser: MagicParser, words: list[tuple[int, str]], *, ends_at_code: bool
) -> tuple[str, list[int]]:
    """Reads words, of which each comes with its place.

    Returns:
        The option whose value comes next, or nothing; and where words are that are neither options
        nor values.
    """
    option, others = "", list[int]()
    for place, word in words:
        name, has_value, _ = word.partition("=")
        if option:
            option = ""
        elif name not in parser.options:
            others.append(place)
            if ends_at_code:
                break
        elif parser.options[name].nargs != 0 and not has_value:
            option = name
    return option, others


def _values(
    parser: MagicParser, option: str, num_processes: int, line: MagicLine, start: int
) -> tuple[int, dict[str, str]] | Code | None:
    """Returns what an option's value may be."""
    action = parser.options[option]
    if action.dest == "mesh":
        return line.code(start)
    typed, values = line.text[start : line.offset], parser.offers.get(option, ())
    if action.type is ranks and num_processes:
        cut = max(typed.rfind(","), typed.rfind("-")) + 1
        start, typed = start + cut, typed[cut:]
        values = tuple(map(str, range(num_processes)))
    return start, dict.fromkeys([each for each in values if each.startswith(typed)], "value")


_Takes = Callable[[str], bool]
"""Whether a cell runs on the processes though it begins with no magic."""

_Current = Callable[[], "Session | None"]
_PlaceIn = Callable[[str, int], Code | MagicLine | None]

_IMPORT = re.compile(r"\s*(?:from|import)\b")
"""Modules are the same for the notebook, and IPython completes their names there."""

_ATTRIBUTE = re.compile(r"(?<![\w.])(?P<name>\w+)\.(?P<typed>\w*)$")
_ASKS = re.compile(r"(?P<before>%spmd[ \t]+(?:.*[ \t])?)(?P<name>[\w.\[\]]+)(?P<marks>\?{1,2})\s*$")
_ASKS_FOR_MAGIC = re.compile(r"\s*(?P<percent>%{1,2})(?P<magic>spmd\w*)\?{1,2}\s*$")
_FIRST = 1000.0
"""Before IPython's own matchers, whose priorities are 0 to 100."""


class _AskedOfProcesses(HelpEnd):
    """Has ``%spmd x?`` ask the processes, and ``%%spmd?`` show the magic's help.

    IPython's own `HelpEnd` asks the notebook.
    """

    priority = HelpEnd.priority - 1

    def transform(self, lines: list[str]) -> list[str]:
        """Returns the lines of a cell, with ``%spmd %pinfo x`` for the question that was found."""
        line = lines[self.q_line]
        of_magic = _ASKS_FOR_MAGIC.match(line, self.start_col)
        if of_magic and self.start_line == self.q_line and of_magic["magic"] in PARSERS:
            kind, body = ("cell", ", '#'") if of_magic["percent"] == "%%" else ("line", "")
            call = f"get_ipython().run_{kind}_magic('{of_magic['magic']}', '--help'{body})\n"
            return [*lines[: self.q_line], line[: self.start_col] + call, *lines[self.q_line + 1 :]]
        found = _ASKS.match(line, self.start_col)
        if found is None or self.start_line != self.q_line:
            raise SyntaxError(line)  # so IPython goes on with its own
        magic = "%pinfo2" if found["marks"] == "??" else "%pinfo"
        asked = f"{line[: self.start_col]}{found['before']}{magic} {found['name']}\n"
        return [*lines[: self.q_line], asked, *lines[self.q_line + 1 :]]


def install(shell: Any, current: _Current, takes: _Takes) -> None:
    """Has a notebook's shell complete and inspect names of the processes.

    Args:
        shell: The notebook's shell.
        current: Returns the notebook's session; None while there is none.
        takes: Whether a cell runs on the processes though it begins with no magic.
    """

    def place_in(cell: str, offset: int) -> Code | MagicLine | None:
        at = place_at(cell, offset)
        return Code(cell, offset, 0) if at is None and takes(cell) else at

    def match(context: CompletionContext) -> Any:
        return _matched(context, current(), shell.user_ns, place_in)

    mark = completion_matcher(priority=_FIRST, identifier="jaxnb", api_version=2)
    shell.Completer.custom_matchers.append(mark(match))
    shell.input_transformer_manager.token_transformers.append(_AskedOfProcesses)
    kernel: Any = getattr(shell, "kernel", None)  # a terminal's shell has none, and no Shift-Tab
    if hasattr(kernel, "do_inspect"):
        kernel.do_inspect = _inspecting(kernel.do_inspect, current, place_in)


# ---------------------------------------------------------------------- Tab


def _matched(
    context: CompletionContext,
    session: Session | None,
    variables: Mapping[str, Any],
    place_in: _PlaceIn,
) -> Any:
    nothing = {"completions": [], "suppress": False}
    lines = context.full_text.split("\n")
    before = "\n".join([*lines[: context.cursor_line], ""])
    line = lines[context.cursor_line][: context.cursor_position]
    if _IMPORT.match(line):
        return nothing
    before += line
    try:
        found = _found(place_in(context.full_text, len(before)), session)
    except Exception:  # IPython would print its traceback over what is typed
        return nothing
    if found is not None:
        start, words = found
        return _result(before[start:], words, is_all=True)
    return _of_ours(before, variables) or nothing


def _result(typed: str, words: Mapping[str, str], *, is_all: bool) -> Any:
    # IPython asks no other matcher where one that wants that finds something: where nothing fits,
    # what stands there already.
    words = words or ({typed: "unknown"} if is_all else {})
    return {
        "completions": [SimpleCompletion(text=each, type=kind) for each, kind in words.items()],
        "matched_fragment": typed,
        "suppress": is_all,
        "ordered": is_all,
    }


def _of_ours(before: str, variables: Mapping[str, Any]) -> Any:
    """Returns the public attributes of an object of jaxnb's; None where there is none.

    Jedi, which IPython asks, fails at some annotations, those of `Session` among them.
    """
    found = _ATTRIBUTE.search(before)
    value = variables.get(found["name"]) if found is not None else None
    if found is None or not type(value).__module__.startswith("jaxnb."):
        return None
    fit = (each for each in dir(type(value)) if each.startswith(found["typed"]))
    words = {each: "attribute" for each in fit if not each.startswith("_")}
    return _result(found["typed"], words, is_all=False)


def _found(
    at: Code | MagicLine | None, session: Session | None
) -> tuple[int, dict[str, str]] | None:
    """Returns where in a cell words begin, and which fit; None where that is the notebook's."""
    if isinstance(at, MagicLine):
        fitting = fits(at, session.num_processes if session is not None else 0)
        if not isinstance(fitting, Code):
            return None if fitting is None else (at.shift + fitting[0], fitting[1])
        at = fitting
    if at is None or session is None:
        return None
    start, words = session.assist.complete(at)
    return at.shift + start, words


# ---------------------------------------------------------------------- Shift-Tab


def _inspecting(
    original: Callable[..., Any], current: _Current, place_in: _PlaceIn
) -> Callable[..., Any]:
    """Returns the kernel's ``do_inspect``, with the names of the processes in their code."""

    def do_inspect(
        code: str, cursor_pos: int, detail_level: int = 0, *rest: Any, **more: Any
    ) -> Any:
        if make := PARSERS.get(magic_at(code, cursor_pos)):
            data = {"text/plain": make().format_help()}
            return {"status": "ok", "found": True, "data": data, "metadata": {}}
        session, at = current(), None
        if session is not None:
            at = place_in(code, cursor_pos)
        if at is None or session is None:
            return original(code, cursor_pos, detail_level, *rest, **more)
        name = token_at_cursor(at.text, at.offset)
        data = session.assist.inspect(name, detail_level) if name else {}
        if isinstance(at, MagicLine) and not data:  # about the magic, as a rule
            return original(code, cursor_pos, detail_level, *rest, **more)
        return {"status": "ok", "found": bool(data), "data": data, "metadata": {}}

    return do_inspect
