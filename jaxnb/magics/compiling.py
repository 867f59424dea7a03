"""``%spmd_collectives``: what a call compiles to, on the group or for devices nobody has."""

from __future__ import annotations

import argparse
import ast
from functools import partial
from typing import TYPE_CHECKING

from IPython.core.magic import line_cell_magic, magics_class, no_var_expand
from IPython.display import display

from jaxnb.errors import UsageError
from jaxnb.labels import one_line
from jaxnb.magics.arguments import (
    PARSERS,
    MagicParser,
    WordsParser,
    flag,
    option,
    split_options,
    unquoted,
    variable,
)
from jaxnb.magics.base import SessionMagics, plain_interrupt
from jaxnb.magics.sinks import DisplayIds, sink_for

if TYPE_CHECKING:
    from jaxnb.compiled.comparison import Comparison


def collectives_parser(magic: str) -> MagicParser:
    """Returns the parser of the magic's line."""
    return MagicParser(
        magic, "Compiles a call without running it, and lists its collectives.",
        option("--devices", type=int, metavar="N",
               help="plan for this many devices, in a process of its own"),
        flag("--show", help="draw each collective step by step, and the bytes between devices"),
        option("--flops", type=_speed, metavar="F",
               help="FLOPs of a device in a second: how long a call takes at least"),
        option("--bandwidth", type=_speeds, default={}, metavar="AXIS=B,…",
               help="bytes that a device sends along an axis in a second, with --flops"),
        usage="%%spmd_collectives CALL [options]",
        epilog="CALL is an expression such as step(state, batch); jax.ShapeDtypeStruct will do for "
        "arguments. With --devices as a cell magic: lines that make mesh and arguments, and CALL "
        "behind them or on the magic's line.",
    )  # fmt: skip


def _speed(text: str) -> float:
    """Reads a number above zero."""
    speed = float(text)
    if not speed > 0:  # nan is not, either
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return speed


def _speeds(text: str) -> dict[str, float]:
    """Reads ``x=9e10,y=4.5e10``."""
    pairs = [each.partition("=") for each in text.split(",")]
    try:
        found = {name.strip(): _speed(value) for name, _, value in pairs}
    except ValueError:
        found = {}
    if len(found) < len(pairs):
        raise argparse.ArgumentTypeError(f"{text!r} is not like x=9e10,y=4.5e10")
    return found


_EXAMPLE = "`data = P('data'), P()`"


def compare_parser(magic: str) -> WordsParser:
    """Returns the parser of the magic's line: a call, with options before and behind it."""
    return WordsParser(
        magic, "Compiles and times a call under several shardings.",
        option("--spec", action="append", default=[], type=_named, metavar="NAME=SPECS",
               help="a variant: data=\"P('data'), P()\""),
        option("--mesh", metavar="MESH",
               help="for all: a name, or {'data': 4} (default: the one there is)"),
        option("--out-spec", action="append", default=[], type=_named, metavar="NAME=SPECS",
               help="of a variant's outputs (default: the compiler chooses)"),
        option("--repeats", type=int, metavar="N",
               help="calls to measure (default: about a second of them)"),
        flag("--no-run", help="compile only"),
        option("--devices", type=int, metavar="N",
               help="plan for this many devices, in a process of its own; nothing is run"),
        flag("--plot", help="draw a chart too"),
        option("--out", type=variable, metavar="NAME",
               help="put the Comparison into this variable of the notebook"),
        usage=f"{magic.replace('%', '%%')} CALL [--spec NAME=SPECS]... [options]",
        epilog="CALL is an expression such as mlp(x, w); SPECS has one spec for each argument, or "
        "one for all. As a cell magic, each line of the cell is NAME = SPECS.",
    )  # fmt: skip


PARSERS["spmd_collectives"] = partial(collectives_parser, "%spmd_collectives")
PARSERS["spmd_compare"] = partial(compare_parser, "%spmd_compare")


def _named(text: str) -> tuple[str, str]:
    name, has_value, value = text.partition("=")
    if not has_value or not name.strip() or not value.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=…")
    return unquoted(name.strip()), unquoted(value.strip())


def _require_alone(code: str) -> None:
    """Returns if a call stands alone.

    Raises:
        UsageError: There are lines before it, which only a plan runs.
    """
    try:
        statements = ast.parse(code).body
    except (SyntaxError, ValueError):
        return  # who reads the call says so
    if len(statements) > 1:
        raise UsageError(
            "Lines before the call are run for a plan only: `%%spmd_collectives --devices 8`. "
            "Nothing was run. For this group put them into a `%%spmd` cell, then type "
            f"`%spmd_collectives {one_line(ast.unparse(statements[-1]))}`."
        )


@magics_class
class CompilingMagics(SessionMagics):
    """The magics that show what the compiler does, and compare shardings."""

    @no_var_expand
    @line_cell_magic
    def spmd_collectives(self, line: str, cell: str | None = None) -> None:
        """Lists the collectives that a call compiles to. `--help` lists the options."""
        magic = "%spmd_collectives" if cell is None else "%%spmd_collectives"
        parser = collectives_parser(magic)
        options, rest = split_options(line, parser)
        asked = parser.asked(self.shell.var_expand(options))
        if asked is None:
            return
        if asked.bandwidth and asked.flops is None:
            parser.error("--bandwidth goes with --flops")
        code, first_line = rest, 1
        if cell and cell.strip():
            code, first_line = f"{cell.rstrip()}\n{rest}".rstrip(), 2
        if asked.devices is None:
            _require_alone(code)
        number, found = self.shell.displayhook.prompt_count, None
        with plain_interrupt("Interrupted; nothing was run, and the group can be used."):
            if asked.devices is not None and self._current() is None:
                from jaxnb.compiled.planning import plan

                name = f"<cell {number}>"
                found = plan(code, devices=asked.devices, name=name, first_line=first_line)
            else:
                found = self._started().collectives(
                    code, devices=asked.devices, cell=number, first_line=first_line
                )
        display(found)
        if asked.show:
            display(found.picture())
        if asked.flops is not None:
            display(found.roofline(asked.flops, asked.bandwidth))

    @line_cell_magic
    def spmd_compare(self, line: str, cell: str | None = None) -> None:
        """Compares a call under several shardings. `--help` lists the options."""
        magic = "%spmd_compare" if cell is None else "%%spmd_compare"
        parser = compare_parser(magic)
        asked = parser.asked(line)
        if asked is None:
            return
        specs = _variants(parser, asked.spec, cell)
        with plain_interrupt("Interrupted; nothing was changed."):
            found = self._compared(asked, specs)
        if asked.out:
            self.shell.push({asked.out: found})
        display(found)
        if asked.plot and any(variant.report for variant in found.variants):
            display(found.plot())

    def _compared(self, asked: argparse.Namespace, specs: dict[str, str]) -> Comparison:
        call = " ".join(asked.words)
        settings = {
            "specs": specs,
            "mesh": asked.mesh,
            "out_specs": dict(asked.out_spec),
            "repeats": asked.repeats,
            "run": not asked.no_run,
        }
        if asked.devices is not None and self._current() is None:
            from jaxnb.compiled import comparing

            code = comparing.code_of(call, **{**settings, "run": False})
            return comparing.compare_planned(code, devices=asked.devices, label=call)
        session, sink = self._started(), sink_for(self.shell, DisplayIds())
        number = self.shell.displayhook.prompt_count
        with sink:
            return session.compare(call, devices=asked.devices, sink=sink, cell=number, **settings)


def _variants(
    parser: MagicParser, given: list[tuple[str, str]], cell: str | None
) -> dict[str, str]:
    """Returns the variants of the line and of the cell: name to specs."""
    pairs = list(given)
    for statement in _statements(cell or ""):
        if not (
            isinstance(statement, ast.Assign)
            and len(statement.targets) == 1
            and isinstance(statement.targets[0], ast.Name)
        ):
            raise UsageError(
                f"`{ast.unparse(statement).partition(chr(10))[0]}` is not a variant: each line "
                f"of the cell is NAME = SPECS, e.g. {_EXAMPLE}. Nothing was run."
            )
        pairs.append((statement.targets[0].id, ast.unparse(statement.value)))
    names = [name for name, _ in pairs]
    if twice := [name for name in names if names.count(name) > 1]:
        parser.error(f"the variant {twice[0]!r} is there twice")
    if not pairs:
        how = "--spec data=\"P('data'), P()\"" if cell is None else f"a line {_EXAMPLE}"
        parser.error(f"there is no sharding to compare; give one or more: {how}")
    return dict(pairs)


def _statements(cell: str) -> list[ast.stmt]:
    try:
        return ast.parse(cell).body
    except (SyntaxError, ValueError) as error:
        line = f" at line {(error.lineno or 0) + 1}" if isinstance(error, SyntaxError) else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(
            f"The cell is not valid Python{line}: {reason}. Each line of it is NAME = SPECS, e.g. "
            f"{_EXAMPLE}. Nothing was run."
        ) from None
