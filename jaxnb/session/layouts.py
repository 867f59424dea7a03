"""How arrays lie over processes: asked of all of them, and put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxnb.arrays import each_its_own, merged, placing
from jaxnb.arrays.layout import ArrayLayout
from jaxnb.arrays.moving import request_for
from jaxnb.arrays.paths import parse_path
from jaxnb.arrays.refusals import missing_error
from jaxnb.errors import UsageError
from jaxnb.lockstep.provenance import apart_text
from jaxnb.model.arrays import ArrayInfo, LayoutReply
from jaxnb.session.reach import Reach

_NAME_IT = (
    "A layout is of what has a name on the processes: `%spmd tree = …`, then `%spmd_layout tree`."
)


def layout_of(reach: Reach, name: str) -> ArrayLayout:
    """Returns how what a name stands for lies over processes and devices.

    Args:
        reach: Reaches the processes.
        name: A name on them, with attributes and subscripts.

    Raises:
        UsageError: There is no such name, or it has other arrays on other processes.
    """
    path = parse_path(name, _NAME_IT)
    with reach.channel() as channel:
        channel.require_living(f"the layout of `{name}` was asked for")
        request = request_for("layout", path=path.text)
        answers = channel.ask_together(dict.fromkeys(channel.able, request), nbytes=1 << 30)
        channel.require(answers, f"the layout of `{name}` was asked for")
    if not all(isinstance(answer, LayoutReply) for answer in answers.values()):
        raise missing_error(path, answers, is_layout=True)
    replies: list[LayoutReply] = list(answers.values())
    paths = [[text for text, _ in reply.entries] for reply in replies]
    if any(p != paths[0] for p in paths) or _are_placed_apart(replies):
        raise UsageError(
            f"`{name}` is a different array on different processes, so one picture would be wrong. "
            + (
                f"Pull it: `spmd.pull({name!r})` has it by process."
                if _can_be_pulled(replies)
                else "They do not fit together: rebind it on all processes in one cell."
            )
        )
    dead = frozenset(range(reach.num_processes)) - answers.keys()
    entries = tuple(
        (text, _merged({reply.process_index: reply.entries[k][1] for reply in replies}, dead))
        for k, text in enumerate(paths[0])
    )
    lost = dict.fromkeys(text for reply in replies for text in reply.lost)
    again = frozenset.intersection(*(frozenset(reply.again) for reply in replies))
    return ArrayLayout(entries, replies[0].others, tuple(lost), again)


def _are_placed_apart(replies: Sequence[LayoutReply]) -> bool:
    """Whether an array of these replies is neither one of all processes nor one of each."""
    each = [[array for _, array in row] for row in zip(*(r.entries for r in replies), strict=True)]
    return any(
        (len(set(map(placing, arrays))) > 1 and not all(a.fully_addressable for a in arrays))
        or len({(array.shape, array.dtype) for array in arrays}) > 1
        for arrays in each
    )


def _can_be_pulled(replies: Sequence[LayoutReply]) -> bool:
    """Whether each process's arrays are whole on processes that say the same of them."""
    same = {
        reply.process_index: tuple((a.dtype, placing(a)) for _, a in reply.entries)
        for reply in replies
    }
    return all(
        same.get(shard.process_index) == same[reply.process_index]
        for reply in replies
        for _, array in reply.entries
        for shard in array.shards
    )


def _merged(arrays: Mapping[int, ArrayInfo], dead: frozenset[int]) -> ArrayInfo:
    """Returns all processes' descriptions of one array as one; says if it is not one array."""
    described = list(arrays.values())
    deleted = {i for i, array in arrays.items() if array.deleted}
    if len(described) > 1 and all(array.fully_addressable for array in described):
        own = each_its_own([array for array in described if not array.deleted] or described)
        return own if own.deleted else replace(own, gone=tuple(sorted(deleted)))
    gone = deleted | dead
    gone &= {shard.process_index for shard in described[0].shards}
    found = merged([array for array in described if not array.deleted] or described)
    if not found.deleted:
        found = replace(found, gone=tuple(sorted(gone)))
    if found.suspect or found.fully_replicated or found.fully_addressable:
        return found
    return replace(found, suspect=apart_text({i: each.source for i, each in arrays.items()}))
