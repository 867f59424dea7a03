"""How values of the processes lie over processes and devices, as a session asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxnb.arrays.blocks import parse as parse_spec
from jaxnb.arrays.layout import ArrayLayout, can_be_pulled, joined
from jaxnb.arrays.moving import request_for
from jaxnb.arrays.refusals import missing_error, other_layouts
from jaxnb.arrays.regions import parse_path
from jaxnb.errors import UsageError
from jaxnb.model.arrays import LayoutReply, NotFound
from jaxnb.model.cells import CallRequest
from jaxnb.session.reach import Reach

_NAME_IT = (
    "A layout is of what has a name on the processes: `%spmd tree = {text}`, then "
    "`%spmd_layout tree`."
)


def _how_not(replies: Sequence[LayoutReply]) -> str:
    arrays = {each.process_index: [array for _, array in each.entries] for each in replies}
    if any(len(each) != 1 for each in arrays.values()):
        return ""
    return f": it {other_layouts({i: each[0] for i, each in arrays.items()})}"


class Layouts:
    """What a session tells of layouts."""

    _reach: Reach

    def layout(self, name: str) -> ArrayLayout:
        """Returns how an array, or the arrays of a pytree, lie over processes and devices.

        A notebook shows it as a picture. No data are moved but the corners of a single array.

        Args:
            name: A name on the processes, with attributes and subscripts.

        Raises:
            UsageError: There is no such name, or it has other arrays on other processes.
        """
        return self.layouts(name)[name]

    def layouts(self, *names: str) -> dict[str, ArrayLayout]:
        """Returns for each name what :meth:`layout` does; an array of several is the first's."""
        paths = {name: parse_path(name, _NAME_IT) for name in names}
        request = request_for("pulls.layouts", names=[path.text for path in paths.values()])
        answers = self._asked(request, ", ".join(f"`{name}`" for name in names))
        dead = frozenset(range(self._reach.num_processes)) - answers.keys()
        found: dict[str, ArrayLayout] = {}
        for k, (name, path) in enumerate(paths.items()):
            replies = {i: each[k] for i, each in answers.items()}
            if not all(isinstance(reply, LayoutReply) for reply in replies.values()):
                raise missing_error(path, replies, is_layout=True)
            layout = joined([*replies.values()], dead)
            if layout is None:
                raise UsageError(
                    f"`{name}` is a different array on different processes, so one picture would "
                    "be wrong. "
                    + (
                        f"Pull it: `spmd.pull({name!r})` has it by process."
                        if can_be_pulled([*replies.values()])
                        else f"They do not fit together{_how_not([*replies.values()])}. Bind it "
                        "again on all processes in one cell."
                    )
                )
            found[name] = layout
        return found

    def planned_layout(
        self, spec: str, shape: Sequence[int], *, dtype: str = "float32", mesh: str | None = None
    ) -> ArrayLayout:
        """Returns how an array would lie by a spec; none is made.

        Args:
            spec: The spec as text: ``"P('data', None)"``.
            shape: The array's shape.
            dtype: Its dtype.
            mesh: The name of the mesh on the processes; by default the one there is.

        Raises:
            UsageError: The spec does not fit (the message says which would); or there is no mesh.
        """
        given = {"spec": parse_spec(spec), "shape": tuple(shape), "dtype": dtype, "mesh": mesh}
        answers = self._asked(request_for("pushes.plan", **given), spec)
        for answer in answers.values():
            if isinstance(answer, NotFound):
                raise UsageError(answer.reason)
        found = joined([*answers.values()])
        if found is None:
            raise UsageError("The mesh is another one on some processes. Make it anew on all.")
        return found

    def _asked(self, request: CallRequest, what: str) -> dict[int, Any]:
        doing = f"the layout of {what} was asked for"
        with self._reach.channel() as channel:
            channel.require_living(doing)
            answers = channel.ask_together(dict.fromkeys(channel.able, request), nbytes=1 << 30)
            channel.require(answers, doing)
        return answers
