"""A process's shell: commands that cells start, tracebacks, and what belongs in the notebook."""

from __future__ import annotations

import atexit
import codecs
import contextlib
import linecache
import os
import re
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn

from IPython.core.error import UsageError
from IPython.utils.path import compress_user

from jaxnb.arrays.process_names import library_places
from jaxnb.cells import process_output
from jaxnb.compat import ipython
from jaxnb.compat.ipython import LibraryFrame, Records
from jaxnb.labels import MAGICS
from jaxnb.launch import lifeline, process_join

# A fork copies signal handlers and exit handlers. Those of jaxnb, ipykernel and JAX are about
# threads, sockets and devices that the copy does not have: a ``multiprocessing`` worker that ran
# them when it was terminated died in JAX's, with fifty lines of a segmentation fault. So a child
# begins with Python's own handlers. Those that the cell's code has set for signals stay; exit
# handlers do not. A child made by ``os.fork`` that comes to the end of the cell, by ``sys.exit``
# too, ends there. It would go on as a second one of its process, on the same sockets.

_PYTHONS_OWN: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}

_parent_pid: int | None = None
_held = threading.local()


def install_forks() -> None:
    """Has children that are forked from now on begin with Python's own handlers."""
    global _parent_pid
    if _parent_pid == os.getpid():
        return
    _parent_pid = os.getpid()
    os.register_at_fork(
        before=_hold_signals, after_in_parent=_let_signals_go, after_in_child=_forget_handlers
    )


def is_child() -> bool:
    """Whether this is a process that a cell has forked."""
    return _parent_pid is not None and os.getpid() != _parent_pid


def end(error: BaseException | None) -> NoReturn:
    """Ends this child of a cell, as Python ends a program.

    What it raised is written to standard error. Exit handlers that it has registered itself run.

    Args:
        error: What the cell has raised in it, if anything.
    """
    status = 0
    if isinstance(error, SystemExit):
        status = exit_status(error, sys.__stderr__)
    elif error is not None:
        status = 1
        traceback.print_exception(error, file=sys.__stderr__)
    try:
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):  # closed, or its other end is
            stream.flush()  # type: ignore[union-attr]
    os._exit(status)


def exit_status(error: SystemExit, stream: Any) -> int:
    """Returns the exit status of what ends so, as Python does; a text is written to the stream."""
    if error.code is None or isinstance(error.code, int):
        return int(error.code or 0) & 0xFF
    print(error.code, file=stream)
    return 1


def _hold_signals() -> None:
    """Has a signal that is sent to the child wait until it has handlers of its own."""
    _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _PYTHONS_OWN)


def _let_signals_go() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.mask)


def _forget_handlers() -> None:
    ours = [number for number in _PYTHONS_OWN if _is_of_jaxnb(signal.getsignal(number))]
    for number in ours:
        # What has come by now ends the child: Python ignores what is raised here.
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)  # a pipe of the parent's event loop
    _let_signals_go()
    for number in ours:
        signal.signal(number, _PYTHONS_OWN[number])
    atexit._clear()
    # What Python's own modules register when they are imported.
    if "multiprocessing.util" in sys.modules:
        atexit.register(sys.modules["multiprocessing.util"]._exit_function)
    if "logging" in sys.modules:
        atexit.register(sys.modules["logging"].shutdown)


def _is_of_jaxnb(handler: Any) -> bool:
    return str(getattr(handler, "__module__", "")).startswith("jaxnb.")


_LEFT_OUT = ("IPython", "jaxnb", "bdb", "pdb", "cmd")
_JAXNB = f"{Path(__file__).parents[1]}/"
_TRACEBACK = "Traceback (most recent call last):\n"
_FRAME = re.compile(r'  File "([^"]*)", line \d+')

ANSI = re.compile(r"\x1b\[[0-9;]*m")
"""What colours text."""


def has_group(error: BaseException | None) -> bool:
    """Whether an error is an exception group, or came while one was handled."""
    known: set[int] = set()
    while error is not None and id(error) not in known:  # two may be each other's context
        if isinstance(error, BaseExceptionGroup):
            return True
        known.add(id(error))
        error = error.__context__
    return False


def install_tracebacks(shell: Any) -> None:
    """Has a shell format the frames of installed modules by file, line, name and source line.

    IPython parses every module that a traceback goes through, to mark what was evaluated, and
    highlights lines around. With JAX's modules, which no user has written, that takes 1.5 s of
    processor time at a process's first error and 0.5 s at each other, on every process. Frames
    of cells and of users' modules stay as IPython shows them; and after ``%xmode Verbose`` in a
    cell, which asks for the variables of all, so do all.

    Args:
        shell: The kernel's shell.
    """
    ipython.format_frames(shell, _records, _format_library_frame)


def python_lines(error: BaseException) -> list[str]:
    """Returns a traceback as Python writes it, without the frames of IPython and jaxnb."""
    chain: list[BaseException | None] = [error]
    while (each := chain[-1]) is not None:
        each.__traceback__ = without_ours(each.__traceback__)
        if notes := getattr(each, "__notes__", None):  # JAX's on the frames that it has left out
            each.__notes__ = [note for note in notes if not note.startswith("-----")]
        following = each.__cause__ or each.__context__
        chain.append(None if following in chain else following)
    return "".join(traceback.format_exception(error)).splitlines()


def _records(etb: TracebackType, own: Records) -> list[Any]:
    found: list[Any] = []
    groups = [(of, list(group)) for of, group in groupby(_entries(etb), key=_is_of_library)]
    for k, (is_library, entries) in enumerate(groups, 1):
        if is_library:
            found.extend(_last_of_jax(entries, calls_user=k < len(groups)))
        else:
            found.extend(own(_chained(entries)))
    return found


_OF_JAX = f"{os.sep}jax{os.sep}_src{os.sep}"


def _last_of_jax(entries: Sequence[TracebackType], *, calls_user: bool) -> Iterator[LibraryFrame]:
    """Yields frames of installed modules; of those of JAX that call each other the last one.

    Where JAX calls a function of the user's, as it traces it, not that one either.
    """
    left_out = 0
    files = [entry.tb_frame.f_code.co_filename for entry in entries]
    for entry, file, following in zip(entries, files, [*files[1:], ""], strict=True):
        if _OF_JAX in file and _OF_JAX in following:
            left_out += 1
        else:
            is_shown = not (calls_user and _OF_JAX in file and not following)
            yield LibraryFrame(entry.tb_frame, entry.tb_lineno, left_out, is_shown)
            left_out = 0


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    """Yields a traceback's entries, without those of IPython, of jaxnb and of a debugger."""
    while traceback is not None:
        frame = traceback.tb_frame
        module = str(frame.f_globals.get("__name__"))
        # Frames that JAX makes to show where something was traced have a file, and no module.
        is_ours = frame.f_code.co_filename.startswith(_JAXNB)
        if not is_ours and module.partition(".")[0] not in _LEFT_OUT:
            yield traceback
        traceback = traceback.tb_next


def without_ours(traceback: TracebackType | None) -> TracebackType | None:
    """Returns a traceback without the frames of IPython and jaxnb."""
    return _chained(list(_entries(traceback)))


def _is_of_library(entry: TracebackType) -> bool:
    return entry.tb_frame.f_code.co_filename.startswith(library_places())


def _chained(entries: list[TracebackType]) -> TracebackType | None:
    """Returns a traceback of these entries only."""
    chained: TracebackType | None = None
    for each in reversed(entries):
        chained = TracebackType(chained, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return chained


def cause_first(message: str) -> str:
    """Returns what XLA says of Python code that has raised, with what that was in its first line.

    It is a callback, or a comparison of static arguments, in which an interrupt may fall too.

    XLA puts the whole traceback into its message. Of its frames those are left out that are not of
    cells or of the user's modules. Other messages are returned as they are.
    """
    head, mark, rest = message.partition(_TRACEBACK)
    if not mark or not any(each in head for each in ("callback", "comparable using __eq__")):
        return message
    lines = rest.rstrip("\n").splitlines()
    own: list[str] = []
    is_own = False
    for line in lines:
        if (frame := _FRAME.match(line)) is not None:
            is_own = not frame[1].startswith((*library_places(), "<frozen"))
        elif not line.startswith(" "):
            break  # what was raised
        own += [line] * is_own
    raised = lines[-1] if lines else ""
    return "\n".join([f"{head}{raised}", _TRACEBACK.rstrip("\n"), *own, raised])


def _format_library_frame(frame: LibraryFrame) -> str:
    source = linecache.getline(frame.filename, frame.lineno, frame.frame.f_globals).strip()
    file = compress_user(frame.filename)
    if not frame.is_shown:
        return f"    [... {frame.left_out + 1} of JAX]\n"
    before = f"    [... {frame.left_out} more of JAX]\n" if frame.left_out else ""
    said = f"{before}File {file}:{frame.lineno}, in {frame.code.co_qualname}\n"
    return f"{said}----> {frame.lineno} {source}\n" if source else said


# IPython runs it through ``os.forkpty``. In a process with a JAX backend, which has threads,
# that may deadlock, and JAX warns of it on every call; ``subprocess`` starts programs without
# running any Python in between.

PIPE_BYTES = 1 << 16
"""What a pipe holds at most, as Linux makes it."""

INTERRUPT_GRACE_SECONDS = 0.2
"""A command that has not ended so long after SIGINT is killed, as IPython's own `!` does: an
interrupt ends a cell within half a second."""


def install_commands(shell: Any) -> None:
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
    joined = process_join.joined()
    process_output.install_limits(shell, joined.num_processes if joined else 1)
    process_output.install_bundles(shell)
    process_output.install_bars()


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
