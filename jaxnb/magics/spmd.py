"""``%spmd_start``, ``%%spmd`` and the others."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from IPython.core.magic import cell_magic, line_cell_magic, line_magic, magics_class, no_var_expand
from IPython.display import Markdown, display, publish_display_data

from jaxnb.cells.result import CellResult
from jaxnb.compat.ipython import reloads_modules
from jaxnb.display.blocks import Note
from jaxnb.display.card import Card, card_of
from jaxnb.errors import CellError, ProcessDiedError, RecoveryInterrupted, UsageError
from jaxnb.labels import processes_label
from jaxnb.magics.arguments import (
    PARSERS,
    cell_parser,
    flag,
    option,
    parsed,
    positive_seconds,
    split_options,
)
from jaxnb.magics.auto import AUTORELOAD, is_auto
from jaxnb.magics.background import BackgroundCell
from jaxnb.magics.base import SessionMagics, plain_interrupt
from jaxnb.magics.sinks import (
    DisplayIds,
    Place,
    ProgressDisplay,
    Sink,
    is_notebook,
    meter_for,
    notice_card,
    sink_for,
)
from jaxnb.model.cells import RichOutput
from jaxnb.options import (
    CHECKS,
    COLLECTIVES,
    LAUNCHERS,
    LOST_SECONDS,
    PLATFORMS,
    StartOptions,
    default_launcher,
)

if TYPE_CHECKING:  # it loads ipyparallel, which `%load_ext` need not wait for
    from jaxnb.session import Session

SESSION_NAME = "spmd"
"""The notebook variable that holds the session, unless the user has one of that name."""

_NO_GROUP = (
    "Interrupted while the processes were replaced. `%spmd_status` shows whether a group is left; "
    "`%spmd_start` starts one."
)


@magics_class
class SpmdMagics(SessionMagics):
    """The magics that start groups and run cells; it holds the notebook's session.

    Attributes:
        session: The session, from a start to a stop.
        stopped: The one before it, whose history can still be looked at.
        meter: Shows the progress of transfers.
    """

    def __init__(self, shell: Any) -> None:
        super().__init__(shell, lambda: self.session)
        self.session: Session | None = None
        self.stopped: Session | None = None
        self.meter = meter_for(shell)
        self._ids = DisplayIds()
        self._told_of_autoreload: Session | None = None

    # ------------------------------------------------------------------ life

    @line_magic
    @parsed(
        "Starts JAX processes and joins them.",
        option("-n", type=int, metavar="N", dest="num_processes",
               help="how many processes (default: one per GPU, else 4)"),
        option("--devices-per-process", type=int, metavar="D",
               help="CPU devices of each process (default: 1)"),
        option("--platform", default="auto", offers=PLATFORMS,
               help="auto, cpu or gpu (default: auto)"),
        option("--launcher", offers=LAUNCHERS,
               help=f"{', '.join(LAUNCHERS)}, mpi, or another of ipyparallel's "
                    f"(default: {default_launcher()})"),
        option("--hosts", default="", metavar="HOSTS",
               help="hosts to start them on over ssh: hostA,hostB:2 (default: this host)"),
        option("--env", action="append", default=[], metavar="NAME=VALUE",
               help="a variable for processes on other hosts; may be repeated"),
        option("--lost-after", type=positive_seconds, default=LOST_SECONDS, metavar="S",
               help="seconds without an answer until a host is given up (default: 60)"),
        option("--attach", default="", metavar="PROFILE[:ID]",
               help="have the engines of an ipyparallel cluster that runs start them"),
        option("--nodes", type=int, metavar="N", help="nodes of a job that is submitted"),
        option("--gpus-per-node", type=int, metavar="N", help="GPUs on each of them"),
        option("--partition", default="", metavar="NAME", help="partition or queue of the job"),
        option("--account", default="", metavar="NAME", help="account that it is charged to"),
        option("--qos", default="", metavar="NAME", help="quality of service of the job"),
        option("--time", default="", metavar="LIMIT", dest="time_limit",
               help="time limit of the job, as Slurm writes it: 1:30:00"),
        option("--collectives", default="gloo", offers=COLLECTIVES,
               help="gloo (the CPU's collectives)"),
        option("--compile-cache", default="", metavar="DIR|off",
               help="folder for compiled programs (default: the user's cache), or off"),
        option("--check", default="strict", offers=CHECKS, metavar="MODE",
               help="strict (the default), or off"),
        option("--no-pitfalls", dest="pitfalls", action="store_false",
               help="turn off pitfall hints (hidden all-gathers and the like)"),
        flag("--bare", help="leave the processes' namespaces empty"),
        option("--timeout", type=positive_seconds, default=60.0, metavar="S",
               help="seconds the start may take (default: 60)"),
    )  # fmt: skip
    def spmd_start(self, asked: argparse.Namespace) -> None:
        """Starts JAX processes and joins them. `%spmd_start --help` lists the options."""
        from jaxnb.launch import card_group

        if self.session is not None and self.session.state != "closed":
            raise UsageError(
                f"There is a group of {self.session.num_processes} processes already "
                f"({self.session.state}). Nothing was started. Type `%spmd_stop` first, or "
                "`%spmd_restart` for fresh processes."
            )
        fields = {k: v for k, v in vars(asked).items() if k != "help"} | {"env": tuple(asked.env)}
        with ProgressDisplay(self.shell) as progress:
            from jaxnb.session import Session

            self._ids.forget_all()
            self.session = Session(StartOptions(**fields), progress)
            self.session.meter = self.meter
            if is_notebook(self.shell):
                place = Place(lambda: self.shell.displayhook.prompt_count)
                self.session.show_waits_by(
                    lambda text: place.show(notice_card(text)) if text else place.clear()
                )
            # What `spmd.run` runs is of the notebook's cell that calls it.
            self.session.count_cells_by(lambda: self.shell.displayhook.prompt_count)
        progress.show(card_group.start_card(self.session.group))
        if not isinstance(self.shell.user_ns.get(SESSION_NAME), (type(None), type(self.session))):
            return
        self.shell.push({SESSION_NAME: self.session}, interactive=False)

    @line_magic
    @parsed("Ends all processes of the group.")
    def spmd_stop(self, _: argparse.Namespace) -> None:
        """Ends all processes of the group."""
        from jaxnb.launch import card_group

        session, self.session = self._started(), None
        self.stopped = session
        started = time.perf_counter()
        session.close()
        self._show(card_group.stopped_card(time.perf_counter() - started))

    @line_magic
    @parsed(
        "Replaces all processes by fresh ones; variables are lost.",
        flag("--replay", help="rerun the cells that ran without an error"),
        flag("--keep", help="give the new processes the variables of the old ones"),
        option("-n", type=int, metavar="N", dest="num_processes",
               help="how many processes (default: as many as before)"),
        option("--devices-per-process", type=int, metavar="D",
               help="CPU devices of each process (default: as before)"),
    )  # fmt: skip
    def spmd_restart(self, asked: argparse.Namespace) -> None:
        """Replaces all processes by fresh ones. `%spmd_restart --help` lists the options."""
        from jaxnb.launch import card_group

        if asked.replay and asked.keep:
            PARSERS["spmd_restart"]().error("argument --keep: not allowed with argument --replay")
        session, n, devices = self._started(), asked.num_processes, asked.devices_per_process
        size: dict[str, Any] = {"num_processes": n, "devices_per_process": devices}
        self._ids.forget_all()
        if asked.keep:
            self._recover(session, **size)
            return
        with plain_interrupt(_NO_GROUP), ProgressDisplay(self.shell) as progress:
            replayed = session.restart(progress, replay=asked.replay, **size)
        progress.show(card_group.start_card(session.group, replayed if asked.replay else None))

    @line_magic
    @parsed("Replaces dead or stuck processes; variables are kept.")
    def spmd_recover(self, _: argparse.Namespace) -> None:
        """Replaces dead or stuck processes; variables are kept."""
        self._recover(self._started())

    def _recover(self, session: Session, **size: Any) -> None:
        from jaxnb.recovery.recovering import recovered_card

        progress = ProgressDisplay(self.shell)
        with plain_interrupt("Interrupted."):
            try:
                with progress:
                    recovered = session.recover(progress, **size)
            except RecoveryInterrupted as error:  # what was lost is told now or never
                progress.show(recovered_card(session.group, error.recovered))
                raise KeyboardInterrupt(error.TOO_LATE) from None
        progress.show(recovered_card(session.group, recovered))

    @line_magic
    @parsed("Interrupts a background cell.")
    def spmd_interrupt(self, _: argparse.Namespace) -> None:
        """Interrupts the cell that runs in the background."""
        was_running = self._started().interrupt()
        print("Interrupted; its card says how it ends." if was_running else "No cell runs.")

    @line_magic
    @parsed("Shows the group and its state.")
    def spmd_status(self, _: argparse.Namespace) -> None:
        """Shows the group and its state."""
        from jaxnb.launch import card_group

        self._show(card_group.status_card(self._started().group))

    # ------------------------------------------------------------------ running

    @cell_magic("spmd")  # type: ignore[arg-type]
    def spmd_cell(self, line: str, cell: str) -> BackgroundCell | None:
        """Runs the cell on every process. `%spmd --help` lists the options."""
        sent = is_auto()
        if sent:
            self._mark()
        asked = cell_parser("%%spmd").asked(line)
        return None if asked is None else self._run(asked, cell, first_line=1 if sent else 2)

    @cell_magic("spmd_profile")  # type: ignore[arg-type]
    def spmd_profile(self, line: str, cell: str) -> BackgroundCell | None:
        """Runs the cell on every process, with `jax.profiler` around it. Takes what `%%spmd` takes.

        `%%spmd_profile DIR` puts the files of all processes into DIR.
        """
        asked = cell_parser("%%spmd_profile").asked(line)
        return None if asked is None else self._run(asked, cell, first_line=2)

    # Braces are the line's own, of an f-string or a dict: IPython would put the notebook's in.
    @no_var_expand
    @line_magic("spmd")  # type: ignore[arg-type]
    def spmd_line(self, line: str) -> BackgroundCell | None:
        """Runs one line on every process. `%spmd --help` lists the options."""
        return self._run_line(line, "%spmd")

    @no_var_expand
    @line_cell_magic
    def spmd_steps(self, line: str, cell: str | None = None) -> BackgroundCell | None:
        """Runs a call without `jit`, and shows what each line within `shard_map` gives.

        `%spmd_steps --help` lists the options.
        """
        if cell is None:
            return self._run_line(line, "%spmd_steps", steps=True)
        asked = cell_parser("%%spmd_steps").asked(line)
        return None if asked is None else self._run(asked, cell, first_line=2, steps=True)

    def _run_line(self, line: str, magic: str, *, steps: bool = False) -> BackgroundCell | None:
        parser = cell_parser(magic)
        options, code = split_options(line, parser)
        asked = parser.asked(self.shell.var_expand(options))
        if asked is None:
            return None
        before = "\n" * (self._line_in_cell() - 1) if code.strip() else ""
        return self._run(asked, before + code, first_line=1, steps=steps)

    def _mark(self) -> None:
        """Says above the output of a plain cell where it has run."""
        if self.session is None:
            raise UsageError(
                "`%spmd_auto` is on, and there is no group of processes. Nothing was run. Type "
                "`%spmd_start`, or `%spmd_auto off` to run cells in the notebook."
            )
        who = processes_label(range(self.session.num_processes))
        self._show(card_of(Note(f"On {who} (`%spmd_auto` is on)", look="dim", wrap=False)))

    def _run(
        self, asked: argparse.Namespace, code: str, first_line: int, *, steps: bool = False
    ) -> BackgroundCell | None:
        session = self._started()
        if steps and asked.background:
            raise UsageError(
                "Steps are shown when the cell has ended: leave out `--async`. Nothing was run."
            )
        if not code.strip():
            raise UsageError("The cell is empty. Nothing was run.")
        settings = {
            "ranks": asked.ranks,
            "timeout": asked.timeout,
            "check": asked.check,
            "check_nans": "inf" if asked.infs else asked.nans,
            "steps": steps,
            # Not shell.execution_count: IPython 9.18 counts it up before the cell runs.
            "cell": self.shell.displayhook.prompt_count,
            "first_line": first_line,
            "outputs": asked.outputs,
            "time": asked.time or asked.repeats is not None,
            "repeats": asked.repeats,
            "profile": asked.profile,
        }
        if asked.background:
            return self._run_in_background(session, code, settings, asked)
        self._run_now(session, code, settings, asked)
        return None

    def _run_in_background(
        self, session: Session, code: str, settings: dict[str, Any], asked: argparse.Namespace
    ) -> BackgroundCell | None:
        handle = BackgroundCell(self.shell, session, code, settings, self._ids, asked.out)
        if asked.out:
            self.shell.push({asked.out: handle})
        if is_notebook(self.shell):
            return handle
        # As the cell's value it would leave an empty `Out[3]:` in a terminal.
        self.shell.displayhook.update_user_ns(handle)
        return None

    def _run_now(
        self, session: Session, code: str, settings: dict[str, Any], asked: argparse.Namespace
    ) -> None:
        sink = sink_for(self.shell, self._ids, f"spmd.results[{settings['cell']}]")
        try:
            with plain_interrupt("Interrupted."), sink:
                if self._told_of_autoreload is not session and reloads_modules(self.shell):
                    self._told_of_autoreload = session
                    sink.notice(AUTORELOAD)
                result = session.run(code, sink=sink, **settings)
        except (CellError, ProcessDiedError) as error:
            if error.result is not None:
                self._finish(error.result, asked, sink)
            raise
        self._finish(result, asked, sink)

    def _finish(self, result: CellResult, asked: argparse.Namespace, sink: Sink) -> None:
        from jaxnb.cells import card_cell, card_value

        if asked.out:
            self.shell.push({asked.out: result})
        rest = sink.rest(asked.outputs)
        if rest.text:
            self._show(rest)
        if result.steps is not None and (result.steps.steps or not result.errors):
            display(result.steps)
        native = card_value.native_value(result)
        if native is not None:
            self._show(native)
            self._show(card_cell.below_card(result))
        else:
            self._show(card_cell.cell_card(result, asked.outputs))

    @line_magic
    def spmd_help(self, line: str) -> None:
        """Shows a page about what JAX does without a word, or a word. `%spmd_help` lists them."""
        from jaxnb.pitfalls.help import page

        text = page(line.strip())
        display(Markdown(text)) if is_notebook(self.shell) else print(text)

    # ------------------------------------------------------------------ helpers

    def _show(self, shown: Card | RichOutput) -> None:
        if isinstance(shown, RichOutput):
            publish_display_data(dict(shown.data), dict(shown.metadata))
        else:
            display(shown)
