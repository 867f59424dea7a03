"""The command lines of the magics that move values."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from jaxnb.arrays.regions import parse_path
from jaxnb.errors import UsageError
from jaxnb.magics.arguments import ranks, variable
from jaxnb.magics.words import NamesParser, spec
from jaxnb.options import suggest

_OF_IPYTHON = {"In", "Out", "get_ipython", "exit", "quit", "_", "__", "___"}


def pull_parser() -> NamesParser:
    """Returns the parser of ``%spmd_pull``."""
    parser = NamesParser(
        "%spmd_pull", "Brings values from the processes into variables of the notebook."
    )
    parser.usage = "%%spmd_pull NAME... [--as NAME] [--ranks 0,2-3]"
    parser.epilog = (
        "NAME may have attributes, subscripts and slices with --as: x[..., :3], state.opt['mu']."
    )
    parser.add_argument("--as", type=variable, dest="target", metavar="NAME",
                        help="the variable's name in the notebook (default: the same)")  # fmt: skip
    parser.add_argument("--ranks", type=ranks, metavar="0,2-3",
                        help="ask these processes only")  # fmt: skip
    return parser


def push_parser() -> NamesParser:
    """Returns the parser of ``%spmd_push``."""
    parser = NamesParser(
        "%spmd_push", "Sends variables of the notebook to the processes, under the same names."
    )
    parser.usage = "%%spmd_push NAME... [--spec P('data', None)] [--mesh NAME] [--ranks 0,2-3]"
    parser.epilog = "Without --spec and --mesh every process gets the value as it is."
    parser.add_argument("--spec", type=spec, metavar="P(...)",
                        help="make global arrays, spread like this: P('data', None), or a dict "
                        "or list of specs in the shape of the value")  # fmt: skip
    parser.add_argument("--mesh", type=variable, metavar="NAME",
                        help="the mesh on the processes (default: the one there is); alone: "
                        "replicated")  # fmt: skip
    parser.add_argument("--ranks", type=ranks, metavar="0,2-3",
                        help="push to these processes only; not with a spec or a mesh")  # fmt: skip
    return parser


def layout_parser() -> NamesParser:
    """Returns the parser of ``%spmd_layout``."""
    parser = NamesParser(
        "%spmd_layout", "Shows how an array, or a pytree of arrays, is laid out over the devices."
    )
    parser.usage = "%%spmd_layout NAME"
    parser.epilog = "NAME may have attributes and subscripts: state.opt['mu']."
    return parser


@dataclass(frozen=True, slots=True)
class Wish:
    """What to pull, and where to.

    Attributes:
        path: What on the processes.
        target: The notebook's variable.
    """

    path: str
    target: str


def wishes(asked: argparse.Namespace, taken: Collection[str]) -> list[Wish]:
    """Returns what a line of ``%spmd_pull`` asks for.

    Args:
        asked: The parsed line.
        taken: Names that must not be bound: the session's.

    Raises:
        UsageError: There is no name for it in the notebook.
    """
    if not asked.names:
        raise UsageError("Nothing to pull. Type e.g. `%spmd_pull x`. Nothing was moved.")
    if asked.target is not None:
        if len(asked.names) > 1:
            if not all(map(_is_path, asked.names)):  # `x + 1`: the path's own error says more
                parse_path(" ".join(asked.names))
            raise UsageError(
                f"`--as` names one variable, and there are {len(asked.names)} to pull. Nothing "
                "was moved. Pull them one at a time."
            )
        return [_checked(Wish(asked.names[0], asked.target), taken)]
    return [_checked(Wish(name, _target(name)), taken) for name in asked.names]


def _is_path(text: str) -> bool:
    try:
        parse_path(text)
    except UsageError:
        return False
    return True


def _target(path: str) -> str:
    try:
        return variable(path)
    except argparse.ArgumentTypeError:
        pass
    parse_path(path)  # what is no path at all has an error of its own
    raise UsageError(
        f"`{path}` is not the name of a variable, so name the one in the notebook: "
        f"`%spmd_pull {path} --as NAME`. Nothing was moved."
    )


def _checked(wish: Wish, taken: Collection[str]) -> Wish:
    whose = "holds the session" if wish.target in taken else ""
    if wish.target in _OF_IPYTHON:
        whose = "is IPython's own"
    if whose:
        raise UsageError(
            f"`{wish.target}` {whose} in the notebook and is not overwritten. Nothing was moved. "
            f"Give it another name: `%spmd_pull {wish.path} --as NAME`."
        )
    return wish


def chosen(
    names: Collection[str], variables: dict[str, Any], hidden: Collection[str] = ()
) -> dict[str, Any]:
    """Returns the notebook's variables that a line of ``%spmd_push`` names.

    Args:
        names: The names.
        variables: The notebook's namespace.
        hidden: Names in it that are IPython's own: ``open``, ``quit``.

    Raises:
        UsageError: It names none, or one that there is not; the message suggests a near one.
    """
    if not names:
        raise UsageError("Nothing to push. Type e.g. `%spmd_push x`. Nothing was moved.")
    for name in names:
        if not name.isidentifier():
            raise UsageError(
                f"`{name}` is not the name of a variable; only whole variables can be pushed. "
                "Nothing was moved. Assign it to one first, or type "
                "`spmd.push(name=...)`."
            )
        if name not in variables:
            mine = [known for known in variables.keys() - hidden if not known.startswith("_")]
            raise UsageError(
                f"The notebook has no variable `{name}`.{suggest(name, mine)} Nothing was moved."
            )
    return {name: variables[name] for name in names}


def only_name(names: list[str]) -> str:
    """Returns the one name of a line of ``%spmd_layout``.

    Raises:
        UsageError: There is none, or more than one.
    """
    if len(names) != 1:
        what = "Name an array" if not names else f"Name one array, not {len(names)}"
        raise UsageError(f"{what}: `%spmd_layout x`.")
    return names[0]
