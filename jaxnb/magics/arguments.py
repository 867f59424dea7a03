"""The magics' command lines."""

from __future__ import annotations

import argparse
import ast
import keyword
import re
import shlex
from collections.abc import Callable, Sequence
from functools import cache, partial, wraps
from typing import Any, NoReturn, get_args

from jaxnb.arrays.blocks import parse as parse_spec
from jaxnb.errors import UsageError
from jaxnb.labels import Outputs
from jaxnb.options import CHECKS, given_twice, suggest

FIRST_WORD = ""
"""What stands for the word behind a magic's options, if it is one of a few."""


Option = tuple[tuple[str, ...], Sequence[str], dict[str, Any]]


def option(*names: str, offers: Sequence[str] = (), **settings: Any) -> Option:
    """Describes an argument of a magic.

    Args:
        names: Its names.
        offers: Values that it may have, for who types one.
        settings: What argparse takes.
    """
    return names, offers, settings


flag = partial(option, action="store_true")


class MagicParser(argparse.ArgumentParser):
    """An argument parser that raises instead of ending the process, and suggests near misses.

    Attributes:
        options: Its arguments by their options' names: argparse's own table is private.
        offers: By the options' names values that they may have.
    """

    def __init__(
        self,
        magic: str,
        description: str,
        *arguments: Option,
        usage: str | None = None,
        epilog: str | None = None,
    ) -> None:
        super().__init__(magic, usage, description, epilog, add_help=False, allow_abbrev=False)
        self.options: dict[str, argparse.Action] = {}
        self.offers: dict[str, Sequence[str]] = {}
        for names, offers, settings in (flag("-h", "--help", help="show this help"), *arguments):
            action = self.add_argument(*names, **settings)
            self.options |= dict.fromkeys(action.option_strings, action)
            known = offers or tuple(action.choices or ())
            self.offers |= dict.fromkeys(action.option_strings or (FIRST_WORD,), known)

    @property
    def asked_by(self) -> str:
        """What shows its options: IPython runs no magic of a cell that has nothing below it."""
        return f"{self.prog}?" if self.prog.startswith("%%") else f"{self.prog} --help"

    def error(self, message: str) -> NoReturn:
        """Raises; argparse itself would end the notebook's process."""
        end = "" if message.endswith(("?", ".")) else "."
        raise UsageError(f"{self.prog}: {message}{end} Type `{self.asked_by}` for all options.")

    def parse_line(self, line: str) -> argparse.Namespace:
        """Parses a magic's line.

        Raises:
            UsageError: An option is unknown (the message suggests the near one) or its value
                is not possible.
        """
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            self.error(f"the line cannot be split into words ({error})")
        return self.parse_words(words)

    def asked(self, line: str) -> argparse.Namespace | None:
        """Parses a magic's line; None if it asks for help, which is printed then.

        Raises:
            UsageError: As :meth:`parse_line` does.
        """
        found = self.parse_line(line)
        if not found.help:
            return found
        print(self.format_help())
        return None

    def parse_words(self, words: Sequence[str]) -> argparse.Namespace:
        """Parses the words of a line; raises as :meth:`parse_line` does."""
        if "-np" in words and "-n" in self.options:  # as `mpirun` has it
            count = [*words, "4"][words.index("-np") + 1]
            self.error(f"unknown option '-np'.{_near('-n', count)}")
        # To find options among other words, argparse formats its usage each time.
        parse = self.parse_known_intermixed_args if words else self.parse_known_args
        found, unknown = parse(words)
        if not found.help and (twice := given_twice(words, self.options)):
            self.error(twice)
        if unknown and not found.help:
            word = unknown[0].partition("=")[0]
            is_number = word.isdecimal() and "-n" in self.options
            near = _near("-n", word) if is_number else self._suggested(word)
            is_host = "--hosts" in words and word[0] != "-" and not is_number
            if is_host or any(each.endswith(",") for each in words):
                near = " A list takes commas without spaces, as in `0,2` and `hostA,hostB`."
            if self.prog.startswith("%%") and word[0] != "-" and not near:
                self.error(f"`{' '.join(unknown)}` stands where options do; code goes below")
            self.error(f"unknown option {word!r}.{near}")
        return found

    def _suggested(self, word: str) -> str:
        """Returns what was probably meant: the option that may have the word as its value."""
        value = word.lstrip("-")
        taking = [name for name, known in self.offers.items() if value in known and name]
        return _near(taking[-1], value) if taking else suggest(word, self.options)


def _near(option: str, value: str) -> str:
    return f" Did you mean `{option} {value}`?"


def positive_seconds(text: str) -> float:
    """Reads a number of seconds above zero."""
    seconds = float(text)
    if not seconds > 0:  # nan is not, either
        raise argparse.ArgumentTypeError(f"{text} is not above 0 seconds")
    return seconds


MAX_RANKS = 1 << 16
"""More processes than any group has: a slip like ``0-99999999`` must not fill the memory."""


def ranks(text: str) -> tuple[int, ...]:
    """Reads process indices: ``"0,2-3"``."""
    indices: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*([0-9]+)\s*(?:-\s*([0-9]+)\s*)?", part)
        if found is None:
            raise argparse.ArgumentTypeError(
                f"{text!r} does not name processes; write them like 0,2-3"
            )
        start, stop = int(found[1]), int(found[2] or found[1])
        if stop < start:
            raise argparse.ArgumentTypeError(f"{part.strip()!r} runs backwards")
        if stop - start >= MAX_RANKS:
            raise argparse.ArgumentTypeError(f"{part.strip()!r} names too many processes")
        indices.update(range(start, stop + 1))
    return tuple(sorted(indices))


def variable(text: str) -> str:
    """Reads a name for a variable."""
    if not text.isidentifier() or keyword.iskeyword(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a name")
    return text


def shape(text: str) -> tuple[int, ...]:
    """Reads a shape: ``"8,8"``; ``"()"`` is that of a number."""
    sizes = [each.strip() for each in text.strip("()[] ").split(",") if each.strip()]
    if not all(each.isdecimal() for each in sizes):
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape; write it like 8,8")
    return tuple(map(int, sizes))


PARSERS: dict[str, Callable[[], MagicParser]] = {}
"""By the names of magics what returns the parser of their lines."""


def parsed(
    description: str, *options: Option, kind: type[MagicParser] = MagicParser, **texts: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Has a magic called with its line parsed; `--help` prints the help, and calls nothing.

    Args:
        description: What the help begins with.
        options: What the line may have.
        kind: How it is parsed.
        texts: Usage and epilog of the help.
    """

    def decorate(magic: Callable[..., Any]) -> Callable[..., Any]:
        name = magic.__name__
        make = PARSERS[name] = cache(partial(kind, f"%{name}", description, *options, **texts))

        @wraps(magic)
        def called(self: Any, line: str) -> Any:
            asked = make().asked(line)
            return None if asked is None else magic(self, asked)

        return called

    return decorate


@cache  # to make it takes as long as to show an empty cell
def cell_parser(magic: str) -> MagicParser:
    """Returns the parser of ``%%spmd``, ``%spmd``, ``%%spmd_profile`` and ``%spmd_steps``."""
    folder = "profile" if magic == "%%spmd_profile" else "--profile"
    lines = " Shows what each line within shard_map gives." if magic.endswith("_steps") else ""
    return MagicParser(
        magic, f"Runs code on every process.{lines}",
        option("--ranks", type=ranks, metavar="0,2-3", help="run on these processes only"),
        option("--out", type=variable, metavar="NAME",
               help="put the CellResult into this variable of the notebook"),
        flag("--async", dest="background",
             help="return at once; the card fills in when the cell ends"),
        option("--timeout", type=positive_seconds, metavar="S",
               help="interrupt the cell after this many seconds"),
        option("--check", metavar="MODE", offers=CHECKS, help="strict or off"),
        flag("--nans", help="find the first NaN in what the cell computes; it runs slower"),
        flag("--infs", help="the same for NaN and Inf"),
        option("--outputs", choices=get_args(Outputs), default="merged",
               help="merge equal lines (default), show all, or the first process's"),
        flag("--time",
             help="run it again for about a second (3 to 1000 times), and show the times"),
        option("--repeats", type=int, metavar="N", help="time N calls after the first"),
        option(folder, default="", metavar="DIR", help="run jax.profiler around it"),
    )  # fmt: skip


PARSERS["spmd"] = partial(cell_parser, "%spmd")
PARSERS["spmd_profile"] = partial(cell_parser, "%%spmd_profile")
PARSERS["spmd_steps"] = partial(cell_parser, "%spmd_steps")


def split_options(line: str, parser: MagicParser) -> tuple[str, str]:
    """Splits a line into its options, before and behind the code, and the code.

    The code keeps its quotes and spaces: options end at the first word that is neither an option
    nor an option's value, and begin again at the last ``--word`` outside of brackets that is an
    option, or that Python could not read. Those of a command (``!ls --all``) are its own.

    Raises:
        UsageError: The word after the first ones begins with ``--``, as options do.
    """
    rest = line.lstrip()
    taken = []
    while rest.startswith("-"):
        word, _, after = rest.partition(" ")
        action = parser.options.get(word.partition("=")[0])
        if action is None:
            if word.startswith("--"):  # `-x + 1` is code
                parser.error(f"unknown option {word!r}.{suggest(word, parser.options)}")
            break
        taken.append(word)
        rest = after.lstrip()
        if action.nargs != 0 and "=" not in word:
            value, _, after = rest.partition(" ")
            taken.append(value)
            rest = after.lstrip()
    behind = _BEHIND.search(rest)
    if behind and (behind[1] in parser.options or not _is_python(rest)):
        before = rest[: behind.start()]
        is_in_comment = _is_python(f"{before} )")
        if _is_python(before) and not is_in_comment:
            return " ".join([*taken, behind[0].strip()]), before
    return " ".join(taken), rest


_BEHIND = re.compile(r"\s(--[a-z][\w-]*)[^()\[\]]*$")


def _is_python(code: str) -> bool:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError):
        return False
    return True


# ``x[..., :3]`` and ``P('data', None)`` are one word each though they have blanks; and quotes
# stay, which a shell's rules would strip.

_CLOSING = {"(": ")", "[": "]", "{": "}"}


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


class WordsParser(MagicParser):
    """A parser for lines with options anywhere among words that have brackets and quotes."""

    def parse_line(self, line: str) -> argparse.Namespace:
        """Parses a magic's line; the words that belong to no option are ``words``.

        Raises:
            UsageError: An option is unknown (the message suggests the near one), its value is
                not possible, or brackets or quotes do not match.
        """
        try:
            words = split_words(line)
        except ValueError as error:
            self.error(f"the line cannot be split into words ({error})")
        options: list[str] = []
        others: list[str] = []
        while words:
            word = words.pop(0)
            name, has_value, value = word.partition("=")
            action = self.options.get(name)
            if not word.startswith("-"):
                others.append(word)
            elif action is None or action.nargs == 0 or not (value or words):
                options.append(word)
            else:
                value = value or words.pop(0)
                value = value if action.type is spec else unquoted(value)
                is_joined = has_value or value.startswith("-")
                options += [f"{name}={value}"] if is_joined else [name, value]
        found = self.parse_words(options)
        found.words = others
        return found


class NamesParser(WordsParser):
    """A parser for lines of names, separated by blanks or commas."""

    def parse_line(self, line: str) -> argparse.Namespace:
        """Parses a magic's line; the names are ``names``. Raises what its base raises."""
        found = super().parse_line(line)
        names: list[str] = []
        for word in found.words:
            parts = [part for part in _cut(word, ",".__eq__) if part]
            if parts and parts[0].startswith(("[", ".")) and names:
                names[-1] += parts.pop(0)  # `x [0]`
            names.extend(map(unquoted, parts))
        found.names = list(dict.fromkeys(names))
        return found
