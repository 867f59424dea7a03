"""``!command`` in a cell, run without forking this process's Python.

IPython runs it through ``os.forkpty``. In a process with a JAX backend, which has threads,
that may deadlock, and JAX warns of it on every call; ``subprocess`` starts programs without
running any Python in between.
"""

from __future__ import annotations

import codecs
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import IO, Any, NoReturn

from IPython.core.error import UsageError

from jaxnb.cells import process_bars, process_bundles, process_flood
from jaxnb.labels import MAGICS
from jaxnb.launch import lifeline, process_bootstrap

PIPE_BYTES = 1 << 16
"""What a pipe holds at most, as Linux makes it."""

INTERRUPT_GRACE_SECONDS = 0.2
"""A command that has not ended so long after SIGINT is killed, as IPython's own `!` does: an
interrupt ends a cell within half a second."""


def install(shell: Any) -> None:
    """Makes ``!command`` of this shell run through :func:`run`, and ``exit()`` end nothing.

    What its cells print and display is kept within bounds from then on.
    """

    def system(command: str) -> None:
        __tracebackhide__ = True  # the cell's line is what matters in a traceback
        run(shell, command)

    def ask_exit() -> None:
        sys.stdout.write("exit() ends no process of the group; type %spmd_stop\n")

    for name in MAGICS:
        for kind in ("line", "cell"):
            shell.register_magic_function(partial(_nested, name), kind, name)
    shell.register_magic_function(partial(_nested, "spmd"), "line", "%spmd")  # on a later line
    for name in ("load_ext", "reload_ext"):
        own = shell.find_line_magic(name)
        shell.register_magic_function(partial(_load_extension, name, own), "line", name)
    shell.system = system
    shell.ask_exit = ask_exit
    joined = process_bootstrap.joined()
    process_flood.install(shell, joined.num_processes if joined else 1)
    process_bundles.install(shell)
    process_bars.install()


def _nested(magic: str, line: str, cell: str | None = None) -> NoReturn:
    """Stands for one of jaxnb's magics in a cell.

    Raises:
        UsageError: Always.
    """
    if magic == "spmd":
        raise UsageError(
            "`%spmd` belongs in the notebook: code in a `%%spmd` cell already runs on the "
            "processes. Remove it."
        )
    raise UsageError(
        f"`%{magic}` belongs in the notebook, and this cell runs on the processes: put it into a "
        "cell without `%%spmd`."
    )


def _load_extension(magic: str, own: Callable[[str], Any], line: str) -> Any:
    """Does what IPython's magic does, but for jaxnb, whose magics have nothing to do here."""
    if line.strip() == "jaxnb":
        _nested(f"{magic} jaxnb", "")
    return own(line)


def run(shell: Any, command: str) -> None:
    """Runs a shell command for the ``system`` of :func:`install`; streams to ``sys.stdout``.

    Sets ``_exit_code`` in the namespace, as IPython does. Standard input is empty. An
    interrupt reaches the command and all that it started; what ignores it is killed. What the
    command leaves running (``&``) does not hold the cell, and its output comes when it comes.
    """
    __tracebackhide__ = True
    # The command's {names} are those of the caller of `system` above, as in IPython's own.
    expanded = shell.var_expand(command, depth=2)
    process = subprocess.Popen(
        expanded,
        shell=True,
        executable=os.environ.get("SHELL") or None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
    )
    end = lifeline.open_process(process.pid)
    try:
        _stream(process, end)
        status = process.wait()
    except KeyboardInterrupt:
        _end(process)
        raise
    finally:
        if end is not None:
            os.close(end)
    shell.user_ns["_exit_code"] = status


def _stream(process: subprocess.Popen[bytes], end: int | None) -> None:
    """Shows what a command writes, until it has ended; what it left running is shown by a thread.

    Args:
        process: The command.
        end: A descriptor that is readable once it has ended; None where the system has none. Then
            it lasts until nobody holds its output any more.
    """
    __tracebackhide__ = True
    assert process.stdout is not None
    stream, waited_for = process.stdout, select.poll()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for each in (stream.fileno(), end):
        if each is not None:
            waited_for.register(each, select.POLLIN)
    ready: set[int | None] = set()
    while end is None or end not in ready:
        ready = {each for each, _ in waited_for.poll()}
        if stream.fileno() in ready and not _show(stream, decoder):
            return
    waited_for.unregister(end)
    # All that it has written is shown: a pipe holds no more than one read returns.
    if waited_for.poll(0) and not _show(stream, decoder):
        return

    def show_rest() -> None:  # a pipe that is closed would end what writes to it
        while _show(stream, decoder):
            pass

    threading.Thread(target=show_rest, name="jaxnb-background-command", daemon=True).start()


def _show(stream: IO[bytes], decoder: codecs.IncrementalDecoder) -> bool:
    """Shows what has been written; returns whether more may come, and closes the pipe if not."""
    __tracebackhide__ = True
    data = os.read(stream.fileno(), PIPE_BYTES)
    sys.stdout.write(decoder.decode(data, final=not data))
    if not data:
        stream.close()
    return bool(data)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a command and all that it has started; of that the background ignores SIGINT."""
    _signal(process, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):  # the user is impatient
        process.wait(INTERRUPT_GRACE_SECONDS)
    _signal(process, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
