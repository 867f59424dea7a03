"""``%spmd_pull``, ``%spmd_push`` and ``%spmd_layout``."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from IPython.core.magic import line_magic, magics_class
from IPython.display import display

from jaxnb.arrays.lost import PerProcess
from jaxnb.arrays.regions import parse_path
from jaxnb.display.card import Card
from jaxnb.errors import UsageError
from jaxnb.labels import plural, processes_label
from jaxnb.magics.arguments import NamesParser, flag, option, parsed, ranks, shape, spec, variable
from jaxnb.magics.base import SessionMagics, plain_interrupt
from jaxnb.magics.sinks import TransferMeter
from jaxnb.options import suggest

if TYPE_CHECKING:
    from jaxnb.arrays.card_transfer import Moved
    from jaxnb.arrays.gathered import GatheredArray
    from jaxnb.arrays.layout import ArrayLayout
    from jaxnb.session import Session


def register(shell: Any, session: Callable[[], Session | None]) -> None:
    """Teaches a shell to show them.

    Args:
        shell: The shell.
        session: Returns the notebook's session, if there is one.
    """
    formatter = shell.display_formatter

    # By name, so that loading the extension need not import the classes.
    def array_bundle(array: GatheredArray) -> dict[str, str]:
        from jaxnb.arrays import card_transfer

        card = card_transfer.gathered_card(array, _pulled_since(array, session()))
        return {"text/plain": card.text, "text/html": card.html}

    formatter.mimebundle_formatter.for_type_by_name(
        "jaxnb.arrays.gathered", "GatheredArray", array_bundle
    )
    values = ("jaxnb.arrays.lost", "PerProcess")
    formatter.formatters["text/html"].for_type_by_name(
        *values, lambda found: _values_card(found, shell).html
    )

    def print_values(found: PerProcess, printer: Any, cycle: bool) -> None:
        inside = len(printer.stack) > 1  # another value: what Python prints, not a table
        printer.text(repr(found) if inside else _values_card(found, shell).text)

    # IPython's own way to print a dict would come before a bundle's text.
    formatter.formatters["text/plain"].for_type_by_name(*values, print_values)


def _values_card(values: PerProcess, shell: Any) -> Card:
    from jaxnb.arrays import card_transfer

    return card_transfer.per_process_card(
        (i, _own_bundle(each, shell)) for i, each in values.items()
    )


def _own_bundle(value: Any, shell: Any) -> dict[str, Any]:
    from jaxnb.arrays.gathered import GatheredArray

    if isinstance(value, GatheredArray):  # a line, not a picture for each process
        return {"text/plain": repr(value)}
    return shell.display_formatter.format(value)[0] or {"text/plain": repr(value)}


def _pulled_since(array: GatheredArray, session: Session | None) -> str:
    """Returns after which cell an array was pulled, if others have run since; else nothing.

    Whether its name has been bound to something else is not known; to pull again tells.
    """
    after = array.wanted().key.after
    if session is None or after is None or after == (session.group.last_cell or 0):
        return ""
    return f"pulled after cell [{after}]" if after else "pulled before the first cell"


_OF_IPYTHON = {"In", "Out", "get_ipython", "exit", "quit", "_", "__", "___"}


def wishes(asked: argparse.Namespace, taken: Collection[str]) -> dict[str, str]:
    """Returns what a line of ``%spmd_pull`` asks for: variables of the notebook to paths.

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
        return {_checked(asked.target, asked.names[0], taken): asked.names[0]}
    return {_checked(_target(path), path, taken): path for path in asked.names}


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


def _checked(target: str, path: str, taken: Collection[str]) -> str:
    whose = "holds the session" if target in taken else ""
    if target in _OF_IPYTHON:
        whose = "is IPython's own"
    if whose:
        raise UsageError(
            f"`{target}` {whose} in the notebook and is not overwritten. Nothing was moved. "
            f"Give it another name: `%spmd_pull {path} --as NAME`."
        )
    return target


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


@magics_class
class ValueMagics(SessionMagics):
    """The magics that move values between the notebook and the processes.

    Args:
        shell: The notebook's shell.
        current: Returns the notebook's session; None while there is none.
        meter: Shows the progress of transfers, and where the card goes then.
    """

    def __init__(
        self, shell: Any, current: Callable[[], Session | None], meter: TransferMeter
    ) -> None:
        super().__init__(shell, current)
        self._meter = meter

    @line_magic
    @parsed(
        "Brings values from the processes into variables of the notebook.",
        option("--as", type=variable, dest="target", metavar="NAME",
               help="the variable's name in the notebook (default: the same)"),
        option("--ranks", type=ranks, metavar="0,2-3", help="ask these processes only"),
        kind=NamesParser,
        usage="%%spmd_pull NAME... [--as NAME] [--ranks 0,2-3]",
        epilog="NAME may have attributes, subscripts and slices with --as: x[..., :3], "
        "state.opt['mu'].",
    )  # fmt: skip
    def spmd_pull(self, asked: argparse.Namespace) -> None:
        """Brings values from the processes into variables of the notebook.

        `--help` lists the options.
        """
        from jaxnb.arrays import card_transfer

        session = self._started()
        held = [name for name, value in self.shell.user_ns.items() if value is session]
        wanted = wishes(asked, held)
        values: dict[str, Any] = {}
        notes: dict[str, list[str]] = {}
        self._meter.begin()
        with plain_interrupt("Interrupted while values were pulled. No variable was changed."):
            for target, path in wanted.items():
                with _noted(notes.setdefault(target, [])):
                    values[target] = session.pull(path, ranks=asked.ranks, lazy=False)
        seconds = self._meter.seconds()
        self.shell.push(values)
        rows = [card_transfer.moved(name, value, *notes[name]) for name, value in values.items()]
        where = "pulled" if asked.ranks is None else f"pulled from {processes_label(asked.ranks)}"
        self._show_moved(rows, where, seconds)

    @line_magic
    @parsed(
        "Sends variables of the notebook to the processes, under the same names.",
        option("--spec", type=spec, metavar="P(...)",
               help="make global arrays, spread like this: P('data', None), or a dict or list of "
               "specs in the shape of the value"),
        option("--mesh", type=variable, metavar="NAME",
               help="the mesh on the processes (default: the one there is); alone: replicated"),
        option("--ranks", type=ranks, metavar="0,2-3",
               help="push to these processes only; not with a spec or a mesh"),
        kind=NamesParser,
        usage="%%spmd_push NAME... [--spec P('data', None)] [--mesh NAME] [--ranks 0,2-3]",
        epilog="Without --spec and --mesh every process gets the value as it is.",
    )  # fmt: skip
    def spmd_push(self, asked: argparse.Namespace) -> None:
        """Sends variables of the notebook to the processes, under the same names.

        `--help` lists the options.
        """
        session = self._started()
        values = chosen(asked.names, self.shell.user_ns, self.shell.user_ns_hidden)
        self._meter.begin()
        with plain_interrupt(
            "Interrupted while values were pushed. No variable on the processes was changed."
        ):
            session.push_values(values, spec=asked.spec, mesh=asked.mesh, ranks=asked.ranks)
        seconds = self._meter.seconds()
        placed = asked.spec is not None or asked.mesh is not None
        sent = {name: _for_ranks(value, asked.ranks) for name, value in values.items()}
        layouts = session.layouts(*sent) if placed else {}
        rows = [_pushed(name, value, layouts.get(name)) for name, value in sent.items()]
        who = plural(session.num_processes, "process")
        where = f"pushed to {who if asked.ranks is None else processes_label(asked.ranks)}"
        self._show_moved(rows, where, seconds)

    def _show_moved(self, rows: Sequence[Moved], where: str, seconds: float) -> None:
        from jaxnb.arrays import card_transfer

        meter = self._meter
        card = card_transfer.moved_card(
            rows, where, meter.moved_bytes, seconds, meter.moving_seconds
        )
        meter.finish(card)

    @line_magic
    @parsed(
        "Shows how arrays, or pytrees of arrays, are laid out over the devices.",
        flag("--bars", help="show how much of each device's memory each NAME takes"),
        option("--call", metavar="CALL",
               help="with --bars: add the temporaries of a call, e.g. 'step(state, batch)'"),
        option("--shape", type=shape, metavar="8,8",
               help="in the place of a NAME stands a spec: how such an array would lie"),
        option("--dtype", default="float32", metavar="DTYPE", help="its dtype (float32)"),
        option("--mesh", type=variable, metavar="NAME",
               help="the mesh on the processes (default: the one there is)"),
        kind=NamesParser,
        usage="%%spmd_layout NAME... [--bars [--call CALL]]\n"
        "       %%spmd_layout P('data', None) --shape 8,8 [--dtype DTYPE] [--mesh NAME]",
        epilog="NAME may have attributes and subscripts: state.opt['mu'].",
    )  # fmt: skip
    def spmd_layout(self, asked: argparse.Namespace) -> None:
        """Shows how an array, or a pytree of arrays, lies over processes and devices.

        `--help` lists the options.
        """
        session, names = self._started(), asked.names
        is_spec = any(each.startswith(("P(", "PartitionSpec(")) for each in names)
        if not names or (len(names) > 1 if asked.shape is not None else is_spec):
            raise UsageError("Name an array, `%spmd_layout x`, or one spec with `--shape 8,8`.")
        with plain_interrupt("Interrupted; nothing was moved."):
            if asked.shape is not None:
                settings = {"dtype": asked.dtype, "mesh": asked.mesh}
                display(session.planned_layout(names[0], asked.shape, **settings))
                return
            layouts = session.layouts(*names)
            if not (asked.bars or asked.call):
                display(*layouts.values())
                return
            from jaxnb.profile import card_bars

            memory = session.collectives(asked.call).memory if asked.call else None
            display(card_bars.bars_card(layouts, session.stats(brief=True), memory))


def _for_ranks(value: Any, ranks: Collection[int] | None) -> Any:
    """Returns what is pushed of a value: of one by process what those processes get."""
    if ranks is None or not isinstance(value, PerProcess):
        return value
    sent = PerProcess({i: value[i] for i in ranks})
    return next(iter(sent.values())) if len(sent) == 1 else sent


def _pushed(name: str, value: Any, layout: ArrayLayout | None) -> Moved:
    """Describes a pushed value as it is on the processes now."""
    from jaxnb.arrays import card_transfer

    row = card_transfer.moved(name, value)
    if layout is None:
        is_array = row.type.startswith("NumPy ")
        return row.with_notes("NumPy there too; --spec makes a global array") if is_array else row
    dtypes = {array.dtype for _, array in layout.entries}
    return row.as_placed(layout.entries, card_transfer.narrowed(value, dtypes))


@contextmanager
def _noted(notes: list[str]) -> Iterator[None]:
    """Puts what a pull warns of on its card; other warnings stay what they are."""
    from jaxnb.arrays.pulling import NotMovedWarning, ReplicasDifferWarning

    noted = (ReplicasDifferWarning, NotMovedWarning)
    with warnings.catch_warnings(record=True) as caught:
        for category in noted:
            warnings.simplefilter("always", category)
        yield
    for each in caught:
        if issubclass(each.category, noted):
            notes.append(str(each.message))
        else:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
