"""What fits behind the name of a magic: options, their values, or code."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from jaxnb.assist.places import Code, MagicLine
from jaxnb.magics import arguments, auto, compiling, looking, state, values
from jaxnb.magics.arguments import MagicParser
from jaxnb.magics.state import debug_parser

PARSERS: dict[str, Callable[[], MagicParser]] = {
    "spmd": lambda: arguments.cell_parser("%spmd"),
    "spmd_start": arguments.start_parser,
    "spmd_restart": arguments.restart_parser,
    "spmd_auto": auto.auto_parser,
    "spmd_pull": values.pull_parser,
    "spmd_push": values.push_parser,
    "spmd_layout": values.layout_parser,
    "spmd_collectives": lambda: compiling.parser_of("%spmd_collectives"),
    "spmd_compare": lambda: compiling.CompareParser("%spmd_compare"),
    "spmd_save": state.save_parser,
    "spmd_load": state.load_parser,
    "spmd_stats": looking.parser_of_line,
    "spmd_timeline": looking.timeline_parser,
    "spmd_history": looking.history_parser,
    "spmd_debug": debug_parser,
}
"""Those of magics that have options."""

NAMES_FROM = {"spmd": 0, "spmd_pull": 0, "spmd_layout": 0, "spmd_collectives": 0, "spmd_compare": 0,
              "spmd_save": 1}  # fmt: skip
"""Magics behind whose options and so many words stands what lives on the processes."""

ENDS_OPTIONS = {"spmd", "spmd_collectives"}
"""Magics behind whose options stands code, which may have words that look like options."""

_WORD = re.compile(r"\S+")


@cache
def parser_of(magic: str) -> MagicParser:
    """Returns the parser of a magic's line."""
    return PARSERS[magic]()


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
    parser, before = parser_of(line.magic), line.text[: line.offset]
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
    values = () if others else parser.offers.get(arguments.FIRST_WORD, ())
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
    if action.type is arguments.ranks and num_processes:
        cut = max(typed.rfind(","), typed.rfind("-")) + 1
        start, typed = start + cut, typed[cut:]
        values = tuple(map(str, range(num_processes)))
    return start, dict.fromkeys([each for each in values if each.startswith(typed)], "value")
