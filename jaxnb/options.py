"""What a start can be asked for: checked before anything is started."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import TypeVar, get_args

from jaxnb.errors import UsageError
from jaxnb.model.dispatches import CheckMode
from jaxnb.model.insight import CheckNans

PLATFORMS = ("auto", "cpu", "gpu")
LAUNCHERS = ("fork", "local", "ssh", "slurm")
"""``"fork"`` forks processes that have imported jax; with ``"local"`` each imports it by itself;
``"ssh"`` starts them on other hosts, ``"slurm"`` on the nodes of an allocation, or of a job that it
submits. Every other launcher of engines that ipyparallel knows, ``"mpi"`` say, is one too."""

JOB_OPTIONS = {
    "nodes": "--nodes",
    "gpus_per_node": "--gpus-per-node",
    "partition": "--partition",
    "account": "--account",
    "qos": "--qos",
    "time_limit": "--time",
}
"""What is asked for of a job that is submitted, and how it is typed."""

COLLECTIVES = ("gloo", "mpi")
CHECKS = get_args(CheckMode)
DEFAULT_NUM_PROCESSES = 4

RANKS = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
"""Variables by which mpiexec says how many programs it has started."""

LOST_SECONDS = 60.0
"""So long a host may leave its beats unanswered until it is given up, unless the user says
otherwise. TCP tries again 0.2 s · (2ⁿ - 1) after a link was cut, so after 25 and 51 s."""

LEAST_LOST_SECONDS, MOST_LOST_SECONDS = 5.0, 90.0
"""What the user may say: JAX takes a process that is silent for 100 s for dead."""

Word = TypeVar("Word", bound=str)


def suggest(word: str, known: Iterable[str]) -> str:
    """Returns ``" Did you mean 'x'?"`` for a near miss, else an empty string."""
    names = {each.lstrip("-"): each for each in known}
    word = word.lstrip("-")
    near = difflib.get_close_matches(word, names, cutoff=0.7)
    near.sort(key=lambda name: sorted(name) != sorted(word))  # letters that were swapped first
    return f" Did you mean {names[near[0]]!r}?" if near else ""


def given_twice(words: Sequence[str], options: Mapping[str, argparse.Action]) -> str:
    """Returns what to type in place of a line that gives an option twice; empty if none does.

    Those that are collected, and those without a value, may be given again.
    """
    given: dict[str, str] = {}
    for i, word in enumerate(words):
        name, has_value, _ = word.partition("=")
        action = options.get(name)
        if action is None or action.nargs == 0 or isinstance(action.default, list):
            continue
        now = word if has_value else " ".join(words[i : i + 2])
        if before := given.get(action.dest, ""):
            both = ",".join(each[len(name) + 1 :] for each in (before, now))
            are_joined = "," in (action.metavar or "") and before.startswith(name)
            how = f"type `{name} {both}`" if are_joined else "keep one of them"
            return f"`{before}` and `{now}` are both given: {how}"
        given[action.dest] = now
    return ""


def one_of(
    what: str, word: Word, known: tuple[Word, ...], undone: str = "Nothing was started."
) -> Word:
    """Returns ``word`` if it is known.

    Args:
        what: What it names.
        word: It.
        known: All there are.
        undone: What has not happened.

    Raises:
        UsageError: It is not; the message names the near one and all there are.
    """
    if word in known:
        return word
    raise UsageError(
        f"Unknown {what} {word!r}.{suggest(word, known)} There are: {', '.join(known)}. {undone}"
    )


def one_of_nans(asked: object) -> CheckNans:
    """Returns what a cell is to look for.

    Raises:
        UsageError: It is none of what is possible.
    """
    if asked is False or asked is True or asked == "inf":
        return asked
    raise UsageError(f"`check_nans` is False, True or 'inf', not {asked!r}. Nothing was run.")


def process_indices(ranks: Iterable[int] | int | None, num_processes: int) -> list[int]:
    """Returns the process indices that ``ranks`` names, all for None, ascending.

    Raises:
        UsageError: It names a process that there is not, or none.
    """
    if ranks is None:
        return list(range(num_processes))
    indices = [ranks] if isinstance(ranks, int) else sorted(set(ranks))
    unknown = [i for i in indices if not 0 <= i < num_processes]
    if unknown or not indices:
        raise UsageError(
            f"There is no process {', '.join(map(str, unknown)) or '(none was named)'}: the "
            f"group has processes 0 to {num_processes - 1}. Nothing was run."
        )
    return indices


@dataclass(frozen=True, slots=True)
class StartOptions:
    """How to start a group.

    Attributes:
        num_processes: How many processes; None for one per GPU, else 4.
        devices_per_process: CPU devices of each process; None for 1. Not for GPUs.
        platform: ``"auto"``, ``"cpu"`` or ``"gpu"``.
        launcher: One of :data:`LAUNCHERS`; None for the best on this system.
        hosts: Where they are started, as in ``"hostA,hostB:4"``; empty for this host.
        env: Variables that processes on other hosts get, as ``NAME`` or ``NAME=VALUE``.
        lost_after: Seconds without an answer after which another host is given up.
        attach: A profile of ipyparallel's, as ``PROFILE`` or ``PROFILE:CLUSTER_ID``: the engines of
            a cluster that runs start the processes; empty for none.
        nodes: On how many nodes a job is to run; None for one.
        gpus_per_node: How many GPUs it asks for on each.
        partition: The job's partition, or queue; empty for the site's.
        account: The account that it is charged to, likewise.
        qos: Its quality of service, likewise.
        time_limit: How long it may run, as Slurm writes times, likewise.
        collectives: The library of the CPU collectives.
        compile_cache: The folder in which compiled programs are kept; ``"off"`` to have each
            process compile by itself; empty for the user's cache.
        bare: Leave the processes' namespaces empty.
        check: ``"strict"``: processes agree on each computation over several of them before it
            runs; ``"off"``: it runs as in plain JAX.
        pitfalls: Tell of pitfalls, unless ``check`` is off.
        timeout: Seconds that the start may take; above a day (``inf`` too), a day.
    """

    num_processes: int | None = None
    devices_per_process: int | None = None
    platform: str = "auto"
    launcher: str | None = None
    hosts: str = ""
    env: tuple[str, ...] = ()
    lost_after: float = LOST_SECONDS
    attach: str = ""
    nodes: int | None = None
    gpus_per_node: int | None = None
    partition: str = ""
    account: str = ""
    qos: str = ""
    time_limit: str = ""
    collectives: str = "gloo"
    compile_cache: str = ""
    bare: bool = False
    check: CheckMode = "strict"
    pitfalls: bool = True
    timeout: float = 60.0

    def __post_init__(self) -> None:
        """Checks every field by itself.

        Raises:
            UsageError: A field is not possible.
        """
        for name, value in (
            ("number of processes (-n)", self.num_processes),
            ("number of devices per process (--devices-per-process)", self.devices_per_process),
            ("number of nodes (--nodes)", self.nodes),
            ("number of GPUs (--gpus-per-node)", self.gpus_per_node),
        ):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise UsageError(f"The {name} must be a whole number, not {value!r}.")
            if value is not None and value < 1:
                raise UsageError(
                    f"The {name} must be at least 1, not {value}. Nothing was started."
                )
        for each in self.env:
            name, equals, _ = each.partition("=")
            if not name.isidentifier() or "\0" in each:
                raise UsageError(
                    f"--env takes NAME or NAME=VALUE, not {each!r}. Nothing was started."
                )
            if not equals and name not in os.environ:
                raise UsageError(
                    f"--env {name}: it is not set here. Nothing was started. Type {name}=VALUE."
                )
        one_of("platform", self.platform, PLATFORMS)
        one_of("collectives", self.collectives, COLLECTIVES)
        one_of("check", self.check, CHECKS)
        if not LEAST_LOST_SECONDS <= self.lost_after <= MOST_LOST_SECONDS:  # nan is not, either
            raise UsageError(
                f"The seconds after which a silent host is given up (--lost-after) must be "
                f"{LEAST_LOST_SECONDS:g} to {MOST_LOST_SECONDS:g}, not {self.lost_after}: "
                "after 100 JAX gives its processes up. Nothing was started."
            )
        if not self.timeout > 0:  # nan is not, either
            raise UsageError(f"The time-out must be positive, not {self.timeout}.")


def launcher_of(options: StartOptions) -> str:
    """Returns how each host starts its processes: as was asked for, or as is best on this system.

    Raises:
        UsageError: There is no launcher of that name, or it does not fit the other options.
    """
    asked = options.launcher or default_launcher()
    if options.attach and (options.launcher or options.hosts):
        raise UsageError(
            "`--attach` has processes started by the engines of a cluster that runs: `--launcher` "
            "and `--hosts` do not go with it. Nothing was started."
        )
    if asked not in LAUNCHERS:
        one_of("launcher", asked, (*LAUNCHERS, *batch_launchers()))
    if asked == "ssh" and not options.hosts:
        raise UsageError(
            "`--launcher ssh` needs hosts. Nothing was started. Add `--hosts hostA,hostB`."
        )
    if options.collectives == "mpi":
        _require_mpi(options)
    needless = [name for name in JOB_OPTIONS if getattr(options, name)]
    if needless and not submits_job(options):
        raise UsageError(
            f"`{JOB_OPTIONS[needless[0]]}` is for a job that is submitted: with `--launcher slurm` "
            "outside of an allocation, say. Nothing was started. Within one leave it out: it has "
            "the nodes that it has."
        )
    if asked not in LAUNCHERS and (options.hosts or options.nodes or options.gpus_per_node):
        raise UsageError(
            f"`--launcher {asked}` has no hosts, nodes or GPUs to choose. Nothing was started. "
            "They are ipyparallel's configuration: `c.MPIEngineSetLauncher.mpi_args`, say."
        )
    needless = [f"--env {each}" for each in options.env if "=" not in each]
    needless += ["--lost-after"] if options.lost_after != LOST_SECONDS else []
    if needless and not (options.hosts or submits_job(options)):
        raise UsageError(
            f"`{needless[0]}` is for other hosts than this: with `--hosts` or `--launcher slurm`, "
            "say. Nothing was started."
        )
    return asked if asked in ("fork", "local") else default_launcher()


def _require_mpi(options: StartOptions) -> None:
    """Raises UsageError if JAX's collectives cannot be MPI's."""
    if options.launcher != "mpi":
        raise UsageError(
            "`--collectives mpi` needs processes that MPI has started. Nothing was started. Add "
            "`--launcher mpi`."
        )
    if (options.devices_per_process or 1) > 1:
        raise UsageError(
            "`--collectives mpi` needs one device in each process: JAX's MPI collectives know "
            "processes by their rank only. Nothing was started. Leave out --devices-per-process."
        )
    library = os.environ.get("MPITRAMPOLINE_LIB", "")
    if not os.path.isfile(library):
        raise UsageError(
            "`--collectives mpi` loads MPI through the library that MPITRAMPOLINE_LIB names, "
            f"{f'and there is no {library}' if library else 'and it is not set'}. Nothing was "
            "started. Build it for your MPI, with its mpicc on PATH, CMake and a Fortran compiler: "
            "`git clone https://github.com/eschnett/MPIwrapper && cd MPIwrapper && cmake -S . -B "
            "build -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=$HOME/mpiwrapper && cmake "
            "--build build && cmake --install build`. Then set "
            "MPITRAMPOLINE_LIB=$HOME/mpiwrapper/lib/libmpiwrapper.so before Jupyter starts."
        )


def submits_job(options: StartOptions) -> bool:
    """Whether the hosts are those of a job that is submitted."""
    is_job = bool(options.attach) or options.launcher not in (None, "fork", "local", "ssh")
    return is_job and not options.hosts


def with_job(options: StartOptions) -> StartOptions:
    """Returns options with the number of processes that a job is submitted for, if one is.

    Raises:
        UsageError: There would be nodes without a process.
    """
    if not submits_job(options) or options.attach:
        return options
    size = next((os.environ[each] for each in RANKS if each in os.environ), "1")
    if options.launcher == "mpi" and int(size) > 1:
        raise UsageError(
            f"This is one of {size} programs that mpiexec has started, and each of them would "
            "start a group. Nothing was started. Start it once, without mpiexec: `--launcher mpi` "
            "runs mpiexec itself."
        )
    nodes, gpus = options.nodes or 1, options.gpus_per_node or 0
    n = options.num_processes or gpus * nodes or max(DEFAULT_NUM_PROCESSES, nodes)
    if nodes > n:
        raise UsageError(
            f"-n asks for {n} processes, and --nodes for {nodes} nodes. Nothing was started. Each "
            "node needs a process."
        )
    return replace(options, num_processes=n)


def batch_launchers() -> tuple[str, ...]:
    """Returns the names of ipyparallel's launchers of engines that are none of ours."""
    found = {each.name.lower() for each in entry_points(group="ipyparallel.engine_launchers")}
    return tuple(sorted(found - {*LAUNCHERS, "batch", "sshproxy", "winhpc"}))


def shown_launcher(options: StartOptions) -> str:
    """Returns the launcher that a group with these options is said to have."""
    if options.attach:
        return "attach"
    if options.launcher is None and options.hosts:
        return "ssh"
    return options.launcher or default_launcher()


def default_launcher() -> str:
    """Returns ``"fork"`` where forking after importing jax is known to be safe (Linux)."""
    return "fork" if sys.platform.startswith("linux") else "local"
