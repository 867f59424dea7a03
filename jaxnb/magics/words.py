"""Lines of names, paths and specs: split into words as a person reads them.

``x[..., :3]`` and ``P('data', None)`` are one word each though they have blanks; and quotes
stay, which a shell's rules would strip.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Callable, Sequence
from typing import Any

from jaxnb.arrays import parse_spec
from jaxnb.magics.arguments import MagicParser

_CLOSING = {"(": ")", "[": "]", "{": "}"}
_CALLED = re.compile(r"[A-Za-z_][\w.]*")


def split_words(line: str) -> list[str]:
    """Splits a line at blanks outside of brackets and quotes; a comment at its end is dropped.

    Raises:
        ValueError: A bracket or a quote is not closed, or closes nothing.
    """
    return [word for word in _cut(line, str.isspace) if word]


def _cut(line: str, is_separator: Callable[[str], bool]) -> list[str]:
    words: list[str] = []
    start, place, open_brackets = 0, 0, ""
    while place < len(line):
        character = line[place]
        if character in "'\"":
            place = _end_of_text(line, place)
        elif character in _CLOSING:
            open_brackets += _CLOSING[character]
        elif character in ")]}":
            if not open_brackets.endswith(character):
                raise ValueError(f"{character!r} closes nothing")
            open_brackets = open_brackets[:-1]
        elif not open_brackets and is_separator(character):
            words.append(line[start:place])
            start = place + 1
        elif not open_brackets and character == "#" and start == place:
            break
        place += 1
    if open_brackets:
        raise ValueError(f"{open_brackets[-1]!r} is missing")
    words.append(line[start:place])
    return words


def _end_of_text(line: str, start: int) -> int:
    """Returns where the text ends that begins with a quote."""
    place = start + 1
    while place < len(line):
        if line[place] == line[start]:
            return place
        place += 2 if line[place] == "\\" else 1
    raise ValueError("no closing quotation")


def unquoted(word: str) -> str:
    """Returns what stands in the quotes, if the whole word is quoted."""
    try:
        text = ast.literal_eval(word)
    except (SyntaxError, ValueError):
        return word
    return text if isinstance(text, str) else word


def spec(text: str) -> Any:
    """Reads a partition spec, also one that was quoted as for a shell.

    Raises:
        UsageError: It is none.
    """
    inner = unquoted(text)
    return parse_spec(inner if re.search(r"[(\[{,]", inner) else text)


class NamesParser(MagicParser):
    """A parser for lines of names, with options anywhere among them.

    Blanks or commas separate the names.
    """

    def parse_line(self, line: str) -> argparse.Namespace:
        """Parses a magic's line; the names are ``names``.

        Raises:
            UsageError: An option is unknown (the message suggests the near one), its value is
                not possible, or brackets or quotes do not match.
        """
        try:
            words = split_words(line)
        except ValueError as error:
            self.error(f"the line cannot be split into words ({error})")
        options: list[str] = []
        names: list[str] = []
        while words:
            word = words.pop(0)
            if not word.startswith("-"):
                parts = [part for part in _cut(word, ",".__eq__) if part]
                if parts and parts[0].startswith(("[", ".")) and names:
                    names[-1] += parts.pop(0)  # `x [0]`
                names.extend(map(unquoted, parts))
                continue
            name, has_value, value = word.partition("=")
            action = self.options.get(name)
            if action is None or action.nargs == 0:
                options.append(word)
            elif not has_value and not words:
                options.append(name)
            else:
                value = value or words.pop(0)
                whole = _with_rest(value, words) if action.type is spec else unquoted(value)
                options.append(f"{name}={whole}")
        found = self.parse_words(options)
        found.names = list(dict.fromkeys(names))
        return found


def _with_rest(value: str, words: list[str]) -> str:
    """Takes from the words those that belong to a spec: ``P ('a')``, ``'a', None``."""
    while words and _goes_on(value, words):
        value = f"{value} {words.pop(0)}"
    return value


def _goes_on(value: str, words: Sequence[str]) -> bool:
    following = words[0]
    called = following.startswith("(") and _CALLED.fullmatch(value) is not None
    return called or value.endswith(",") or following.startswith(",")
