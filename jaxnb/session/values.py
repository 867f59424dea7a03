"""What a session does with values of the processes: pulls, pushes, layouts, and how they look."""

from __future__ import annotations

import keyword
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxnb.arrays.moving import Meter, Mover, no_meter
from jaxnb.arrays.pulling import Puller
from jaxnb.arrays.pushing import Pusher
from jaxnb.assist.completion import Assist
from jaxnb.compiled.compiling import Collectives, compile_on
from jaxnb.compiled.planning import plan
from jaxnb.errors import UsageError
from jaxnb.model.group import GroupInfo, ProcessInfo
from jaxnb.options import process_indices
from jaxnb.profile.statistics import DeviceStats, device_rows
from jaxnb.recovery.messages import SavedState
from jaxnb.recovery.saving import Saver
from jaxnb.session.group import Life, info_of
from jaxnb.session.layouts import Layouts
from jaxnb.session.reach import Reach
from jaxnb.session.work import Work

NO_ANSWER = "does not answer: it is stopped, or keeps the lock of its Python interpreter"


class Transfers(Layouts):
    """What a session asks of its processes beside cells.

    Args:
        life: The group.
        reach: Reaches its processes.

    Attributes:
        assist: Help while typing code for these processes.
        meter: Returns what shows the progress of a transfer; shows nothing by default.
    """

    assist: Assist
    meter: Meter
    _work: Work

    def __init__(self, life: Life, reach: Reach) -> None:
        self.meter = no_meter
        self._life, self._reach = life, reach
        mover = Mover(lambda: self.meter)
        self._puller = Puller(reach, mover)
        self._pusher = Pusher(reach, mover)

    @property
    def num_processes(self) -> int:
        """Size of the group."""
        return self._life.num_processes

    @property
    def generation(self) -> int:
        """How often the group has been restarted."""
        return self._life.generation

    @property
    def processes(self) -> list[ProcessInfo]:
        """The processes, by process index."""
        return self._life.processes

    @property
    def group(self) -> GroupInfo:
        """The whole group, for display."""
        return info_of(self._life)

    def stats(self, *, brief: bool = False) -> list[DeviceStats]:
        """Returns a row for every device of every process.

        Also while a cell runs, or hangs. A process that is dead, or cannot answer, gives rows
        without numbers that say so.

        Args:
            brief: Leave out what takes milliseconds of a process: the largest arrays, and PSS.

        Raises:
            SessionClosedError: The session was closed.
            SessionBrokenError: The group is being restarted.
        """
        sentinels = self._life.require_sentinels()
        return device_rows(sentinels, lambda: self.processes, brief=brief, silent=NO_ANSWER)

    def pull(
        self, name: str, *, ranks: Iterable[int] | int | None = None, lazy: bool = True
    ) -> Any:
        """Brings a value from the processes to the notebook.

        Every ``jax.Array`` in it becomes a :class:`jaxnb.GatheredArray`, whose data
        stay on the processes until they are used; those of small arrays come along. No
        collective is issued and nothing is computed: it works while the processes are out of
        step, and with what is left after one has died. Containers, pytrees and whatever can
        be pickled come as they are; an object of a class that a cell defined comes as a
        :class:`~jaxnb.model.Record`.

        Which step of a computation a process is at is not known. Where some processes have
        bound the name to a newer array that is spread alike, the one that comes has parts of
        both.

        Args:
            name: A name on the processes, with attributes and literal subscripts:
                ``"x"``, ``"state.opt['mu']"``, ``"x[..., :3]"``. Of a slice only what it
                takes is moved.
            ranks: The processes to ask, or one; all by default.
            lazy: ``False`` brings the data of all arrays at once.

        Returns:
            The value if the processes agree on it; they are compared byte by byte, arrays that
            are spread over processes by layout. Else a
            :class:`~jaxnb.cells.result.PerProcess` of their values.

        Raises:
            UsageError: The name does not exist on all of the processes, or is no name.
            NotEnoughMemoryError: It is larger than the memory that is free here.
            ProcessDiedError: A process died meanwhile.
            JaxnbError: It cannot be pickled, or a process is in a cell that was given up.
        """
        indices = None if ranks is None else process_indices(ranks, self.num_processes)
        return self._puller.pull(name, indices, lazy=lazy)

    def push(
        self,
        /,
        *,
        spec: Any = None,
        mesh: str | None = None,
        ranks: Iterable[int] | int | None = None,
        **values: Any,
    ) -> None:
        """Binds values of the notebook to names on the processes: on all of them, or on none.

        With a spec or a mesh, arrays and numbers (also inside pytrees) become global
        ``jax.Array``; each process receives its own shards only. As in
        JAX, 64-bit numbers become 32-bit unless ``jax_enable_x64`` is on; integers that would
        not fit are refused. Without, every process gets the value as it is: NumPy stays NumPy,
        which JAX takes as replicated.

        Variables named ``spec``, ``mesh`` or ``ranks`` are pushed by :meth:`push_values`.

        Args:
            spec: A partition spec: ``("data", None)``, ``"data"``, ``jax.P("data")``;
                ``(("data", "model"), None)`` splits one dimension by two axes. Or dicts and
                lists of specs in the shape of the value. None with a mesh: replicated.
            mesh: Name of a mesh on the processes; by default the one there is.
            ranks: The processes to push to, or one; all by default. Not with a spec or a mesh.
            values: Name to value. A :class:`~jaxnb.cells.result.PerProcess` gives each process
                its own.

        Raises:
            UsageError: A spec does not fit, there is no such mesh, a value cannot be pickled;
                nothing was moved.
            NotEnoughMemoryError: It is larger than the memory that is free.
            ProcessDiedError: A process died meanwhile.
        """
        settings = {"spec": spec, "mesh": mesh, "ranks": ranks}
        given = [name for name, setting in settings.items() if setting is not None]
        if given and not values:
            raise UsageError(
                f"Nothing to push: `spec`, `mesh` and `ranks` are settings of `push`, not "
                f"variables. To push a variable of that name, type `spmd[{given[0]!r}] = ...`."
            )
        self.push_values(values, spec=spec, mesh=mesh, ranks=ranks)

    def push_values(
        self,
        values: Mapping[str, Any],
        *,
        spec: Any = None,
        mesh: str | None = None,
        ranks: Iterable[int] | int | None = None,
    ) -> None:
        """Binds values to names on the processes, as :meth:`push` does; any name is possible.

        Args:
            values: Name to value; ``{"mesh": 3}`` binds the variable ``mesh``.
            spec: As for :meth:`push`.
            mesh: As for :meth:`push`.
            ranks: As for :meth:`push`.

        Raises:
            UsageError: As for :meth:`push`.
            NotEnoughMemoryError: It is larger than the memory that is free.
            ProcessDiedError: A process died meanwhile.
        """
        _require_pushable(values, spec, mesh, ranks)
        indices = process_indices(ranks, self.num_processes)
        self._pusher.push(values, spec, mesh, indices)

    def collectives(
        self,
        code: str,
        *,
        devices: int | None = None,
        cell: int | None = None,
        first_line: int = 1,
    ) -> Collectives:
        """Returns what a call compiles to: its collectives, and what it costs each device.

        The call is lowered and compiled on all processes, and not run; nothing is donated. Its
        function and its arguments are evaluated, as in a cell. They may be
        ``jax.ShapeDtypeStruct``, which have no data.

        With ``devices`` it is compiled for that many CPU devices, in a scratch process that
        ends with the call. Then ``code`` may have several lines, of which the last is the call:
        it makes the mesh and the arguments. The variables of the first process are taken along,
        except arrays.

        Args:
            code: The call, as an expression: ``"step(state, batch)"``.
            devices: How many devices to plan for.
            cell: The number of the notebook's cell, for a plan's tracebacks.
            first_line: The notebook's number of the first line of the code, likewise.

        Raises:
            UsageError: It is not a call, or the plan needs an array of the group.
            NotCompiledError: It cannot be evaluated, traced, lowered or compiled.
            ProcessDiedError: A process died meanwhile.
            JaxnbError: The processes compiled different programs.
        """
        if devices is not None:
            name = "<plan>" if cell is None else f"<cell {cell}>"
            return plan(
                code,
                devices=devices,
                definitions=self._reach.definitions,
                name=name,
                first_line=first_line,
            )
        with self._reach.channel() as channel:
            return compile_on(channel, code)

    def save(
        self, folder: str | os.PathLike[str], names: Iterable[str] = (), *, overwrite: bool = False
    ) -> SavedState:
        """Saves the variables of every process to a directory.

        Arrays come back with their shards, dtypes and shardings; functions and classes of cells,
        meshes and random states too. What cannot be saved (a generator, a lock, an open file) does
        not keep the rest from it, and is named. For checkpoints that outlive a version of Python,
        or of JAX, use Orbax.

        Args:
            folder: The directory: it is there as a whole in the end, or as it was.
            names: The variables; all by default.
            overwrite: Replace what was saved there before.

        Returns:
            What was saved; its text tells of it.

        Raises:
            UsageError: The directory cannot be used, or a name is not on all processes.
            NotEnoughMemoryError: There is not so much room on the disk.
            ProcessDiedError: A process died meanwhile.
            JaxnbError: A process could not write its file.
        """
        with self._reach.channel() as channel:
            return Saver(channel, self.group).save(
                os.fspath(folder), _names(names), overwrite=overwrite
            )

    def load(self, folder: str | os.PathLike[str], names: Iterable[str] = ()) -> SavedState:
        """Binds the variables that :meth:`save` has saved, on each process its own.

        In a group of another size arrays over several processes are laid out anew: over this
        group's mesh with the same axis names, or one whose first axis is longer or shorter. Further
        processes have what the first has saved of everything else.

        What is loaded was pickled: loading runs code of it. Load what you, or somebody whom you
        trust, have saved.

        Args:
            folder: The directory.
            names: The variables; all by default. Others that processes have stay as they are.

        Returns:
            What was loaded; its text tells of it.

        Raises:
            UsageError: There are no saved variables, or such that do not fit this group: another
                platform, another version of Python.
            JaxnbError: A file is not as it was written, or an array cannot be laid out over this
                group's devices; nothing was loaded.
        """
        with self._reach.channel() as channel:
            return Saver(channel, self.group).load(os.fspath(folder), _names(names))

    def show_waits_by(self, show: Callable[[str], None]) -> None:
        """Has a function show who is waited for outside of cells.

        Args:
            show: Takes a sentence; an empty one when that is over.
        """
        self._work.show_wait = show

    def _ipython_key_completions_(self) -> list[str]:
        """Returns what ``spmd["`` may go on with."""
        return list(self.assist.names())

    def __getitem__(self, name: str) -> Any:
        """Returns what :meth:`pull` returns for a name."""
        _require_text(name)
        return self.pull(name)

    def __setitem__(self, name: str, value: Any) -> None:
        """Binds a value to a name on every process, as :meth:`push` does without a spec."""
        self.push_values({name: value})

    # Without it `for x in session` and `"x" in session` would try session[0], session[1] …
    __iter__ = None
    __contains__ = None


def _names(names: Iterable[str]) -> tuple[str, ...]:
    found = (names,) if isinstance(names, str) else tuple(names)
    for name in found:
        _require_text(name)
    return found


def _require_pushable(
    values: Mapping[str, Any], spec: Any, mesh: Any, ranks: Iterable[int] | int | None
) -> None:
    if not values:
        raise UsageError("Nothing to push. Type e.g. `spmd.push(x=array, spec=('data',))`.")
    for name in values:
        _require_text(name)
        if not name.isidentifier() or keyword.iskeyword(name):
            raise UsageError(
                f"{name!r} is not a variable's name; only whole variables can be assigned. "
                "Nothing was moved. In a cell: `%spmd x['a'] = …`."
            )
    if mesh is not None and not isinstance(mesh, str):
        raise UsageError(
            f"mesh is the NAME of a mesh on the processes, e.g. mesh='mesh', not a "
            f"{type(mesh).__name__}. Nothing was moved. To push a variable of that name, type "
            "`spmd['mesh'] = ...`."
        )
    if ranks is not None and (spec is not None or mesh is not None):
        raise UsageError(
            "A global array is made by all processes of its mesh: leave out `ranks`, or "
            "`spec` and `mesh`. Nothing was moved."
        )


def _require_text(name: Any) -> None:
    if not isinstance(name, str):
        raise UsageError(f"Names on the processes are text, as in `spmd['x']`, not {name!r}.")
