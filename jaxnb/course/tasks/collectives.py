"""Collectives by hand: each from ``ppermute``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxnb.course.exercise import Exercise
from jaxnb.course.tasks.common import mapped, table
from jaxnb.course.verdict import Wrong

Array = np.ndarray[Any, Any]

OTHERS = ("all-gather", "all-reduce", "all-to-all", "reduce-scatter")
"""What these exercises are to be made of does not include these."""

SHIFT = "jax.lax.ppermute(x, axis, [(j, (j + 1) % n) for j in range(n)])"

SMALL = table(16, 2)
"""Two rows on each of eight devices."""

BLOCKS = SMALL.reshape(8, 2, 2)

LARGE = table(64, 2)
"""Eight rows on each device: one for each."""

PARTS = LARGE.reshape(8, 8, 2)
"""By device and part."""

SCRAMBLED = (np.arange(16, dtype=np.float32) * 7 % 16).reshape(16, 1)

WIDE = table(16, 3)


def _small(define: str) -> str:
    return mapped(define, 'P("i")', x=("table(16, 2)", '"i"'))


def _large(define: str) -> str:
    return mapped(define, 'P("i")', x=("table(64, 2)", '"i"'))


def _halos(above_first: Array, below_last: Array, *, swapped: bool = False) -> Array:
    """Returns blocks of two rows with the rows around them, one below the other."""
    padded = np.concatenate([above_first, WIDE, below_last])
    blocks = [padded[2 * d : 2 * d + 4] for d in range(8)]
    order = [3, 1, 2, 0] if swapped else [0, 1, 2, 3]
    return np.concatenate([block[order] for block in blocks])


def _tree_sums() -> Array:
    """Returns what devices have after three rounds of a tree that sums, others not cleared."""
    held = BLOCKS.copy()
    for k in (1, 2, 4):
        for j in range(0, 8, 2 * k):
            held[j] += held[j + k]
    return held.reshape(16, 2)


def _product(column: Callable[[int, int], int]) -> Array:
    """Returns ``x @ w`` as it comes out with wrong columns of ``x``.

    Args:
        column: By device and step, the column that is taken for the row of w that is there then.
    """
    x, w = table(16, 8).reshape(8, 2, 8), table(8, 4)
    return np.concatenate(
        [
            sum(np.outer(x[d][:, column(d, k) % 8], w[(d - k) % 8]) for k in range(8))
            for d in range(8)
        ]
    )


EXERCISES = (
    Exercise(
        name="shift",
        task="Pass each device's block to the next device, and the last one's to the first.",
        start="def my_shift(x, axis):\n    # x: (2, 2) on each of eight devices\n    ...",
        setup=_small("my_shift"),
        call="f(x)",
        want=np.roll(SMALL, 2, 0),
        budget=16,
        forbidden=OTHERS,
        wrong=(
            Wrong(
                "direction",
                "The blocks have gone to the device before. A pair is (source, destination).",
                value=np.roll(SMALL, -2, 0),
            ),
            Wrong(
                "ends",
                "The first device has zeros, as nothing was sent to it: close the ring with `% n`.",
                value=np.concatenate([np.zeros((2, 2), np.float32), SMALL[:-2]]),
            ),
        ),
        hints=("`jax.lax.axis_size(axis)` is n; a permutation is a list of pairs.", SHIFT),
    ),
    Exercise(
        name="broadcast",
        task="Give every device the block of device 0, in three rounds.",
        start="def my_broadcast(x, axis):\n    # x: (2, 2) on each of eight devices\n    ...",
        setup=_small("my_broadcast"),
        call="f(x)",
        want=np.tile(SMALL[:2], (8, 1)),
        budget=3 * 16,
        forbidden=OTHERS,
        wrong=(
            Wrong(
                "zeros",
                "A device that is sent nothing gets zeros from `ppermute`: let it keep what it "
                "has, with `jnp.where`.",
                value=np.concatenate([np.zeros((14, 2), np.float32), SMALL[:2]]),
            ),
            Wrong(
                "chain",
                "From one to the next it takes seven rounds. In each round all that have the block "
                "can send it: 1, 2, 4, 8 have it.",
                uses="bytes",
            ),
        ),
        hints=(
            "In round k, devices 0 to 2**k - 1 have the block.",
            "Pairs of round k: `[(j, j + 2**k) for j in range(2**k)]`.",
        ),
    ),
    Exercise(
        name="reduce",
        task="Sum the blocks of all devices on device 0, in three rounds; the others return zeros.",
        start="def my_reduce(x, axis):\n    # x: (2, 2) on each of eight devices\n    ...",
        setup=_small("my_reduce"),
        call="f(x)",
        want=np.concatenate([BLOCKS.sum(0), np.zeros((14, 2), np.float32)]),
        budget=3 * 16,
        forbidden=OTHERS,
        wrong=(
            Wrong(
                "left",
                "Device 0 is right; the others still have what they have sent. "
                "`jnp.where(me == 0, …)`.",
                value=_tree_sums(),
            ),
            Wrong(
                "chain",
                "Seven rounds are too many: in the first, four devices can send to four others.",
                uses="bytes",
            ),
        ),
        hints=(
            "A broadcast, backwards.",
            "Rounds k = 1, 2, 4: device j + k sends to j, for j in range(0, n, 2 * k).",
        ),
    ),
    Exercise(
        name="all_gather",
        task="Give every device the blocks of all, in order, by passing blocks around the ring.",
        start="def my_all_gather(x, axis):\n    # x: (2, 2) on each of eight devices\n    ...",
        setup=_small("my_all_gather"),
        call="f(x)",
        want=np.tile(SMALL, (8, 1)),
        budget=7 * 16,
        forbidden=OTHERS,
        wrong=(
            Wrong(
                "order",
                "Each device has the blocks in its own order. Write a block at the place of its "
                "owner: after k steps, that is `(me - k) % n`.",
                value=np.concatenate([BLOCKS[(d - k) % 8] for d in range(8) for k in range(8)]),
            ),
            Wrong(
                "backwards",
                "Blocks come from the device before: after k steps from `me - k`, not `me + k`.",
                value=np.concatenate([BLOCKS[(2 * d - k) % 8] for d in range(8) for k in range(8)]),
            ),
            Wrong(
                "whole",
                "Pass on the block that has just come, not the whole buffer.",
                uses="bytes",
            ),
        ),
        hints=("n - 1 times: pass on what has come last.", SHIFT),
    ),
    Exercise(
        name="reduce_scatter",
        task="Each device has n rows; give device j the sum of all devices' rows j, as one row.",
        start="def my_reduce_scatter(x, axis):\n    # x: (8, 2) on each of eight devices\n    ...",
        setup=_large("my_reduce_scatter"),
        call="f(x)",
        want=PARTS.sum(0),
        budget=7 * 8,
        forbidden=OTHERS,
        wrong=(
            Wrong(
                "shifted",
                "The sums are right, and one device too far: begin with the row of the device "
                "before, so that a sum ends where it belongs.",
                value=np.roll(PARTS.sum(0), -1, 0),
            ),
            Wrong(
                "whole",
                "Pass on a sum of one row, to which each device adds its own; not all rows.",
                uses="bytes",
            ),
        ),
        hints=(
            "A sum travels around the ring, and every device adds its own row to it.",
            "The sum for device j begins at device j + 1. So device `me` begins with row me - 1.",
        ),
    ),
    Exercise(
        name="all_reduce",
        task="Sum the blocks of all devices on every device, with the bytes of a ring.",
        start="def my_all_reduce(x, axis):\n    # x: (8, 2) on each of eight devices\n    ...",
        setup=_large("my_all_reduce"),
        call="f(x)",
        want=np.tile(PARTS.sum(0), (8, 1)),
        budget=2 * 7 * 8,
        forbidden=OTHERS,
        wrong=(
            Wrong(
                "twice",
                "Each device has counted its own block twice: n - 1 steps, not n.",
                value=np.tile(PARTS.sum(0), (8, 1)) + LARGE,
            ),
            Wrong(
                "whole",
                "Passing whole blocks around sends (n - 1) blocks. Sum each row on one device "
                "first, then gather the rows: 2 (n - 1) / n blocks.",
                uses="bytes",
            ),
        ),
        hints=("A reduce-scatter, and then an all-gather.", "Use your answers to both."),
    ),
    Exercise(
        name="all_to_all",
        task="Give row j of each device's block to device j, which puts the rows in their senders' "
        "order.",
        start="def my_all_to_all(x, axis):\n    # x: (8, 2) on each of eight devices\n    ...",
        setup=_large("my_all_to_all"),
        call="f(x)",
        want=PARTS.transpose(1, 0, 2).reshape(64, 2),
        budget=7 * 8,
        forbidden=OTHERS,
        wrong=(
            Wrong(
                "place",
                "What comes k steps from behind belongs at `(me - k) % n`, its sender's place.",
                value=np.stack(
                    [[PARTS[(2 * d - r) % 8, d] for r in range(8)] for d in range(8)]
                ).reshape(64, 2),
            ),
            Wrong("whole", "Send one row in each round, not the block.", uses="bytes"),
        ),
        hints=(
            "n - 1 rounds; in round k, each device sends a row to the device k further on.",
            "In round k send `x[(me + k) % n]`; it comes from `(me - k) % n`.",
        ),
    ),
    Exercise(
        name="maximum",
        task="Give every device the elementwise maximum of all blocks, in three rounds.",
        start="def my_max(x, axis):\n    # x: (2, 1) on each of eight devices\n    ...",
        setup=mapped(
            "my_max",
            'P("i")',
            x=("(np.arange(16, dtype=np.float32) * 7 % 16).reshape(16, 1)", '"i"'),
        ),
        call="f(x)",
        want=np.tile(SCRAMBLED.reshape(8, 2, 1).max(0), (8, 1)),
        budget=3 * 8,
        forbidden=OTHERS,
        wrong=(
            Wrong(
                "neighbours",
                "After three steps to the next device you have seen four blocks. Double the "
                "distance in each round.",
                value=np.max(
                    [np.roll(SCRAMBLED.reshape(8, 2, 1), k, 0) for k in range(4)], axis=0
                ).reshape(16, 1),
            ),
            Wrong(
                "ring",
                "Seven rounds are too many: a maximum may count a block twice, so distances of 1, "
                "2 and 4 are enough.",
                uses="bytes",
            ),
        ),
        hints=(
            "After a round with distance k, each device knows twice as many blocks.",
            "Pairs `[(j, j ^ k) for j in range(n)]` for k = 1, 2, 4 swap with a partner.",
        ),
    ),
    Exercise(
        name="prefix_sum",
        task="Give device d the sum of the blocks of devices 0 to d, in three rounds.",
        start="def my_prefix_sum(x, axis):\n    # x: (2, 2) on each of eight devices\n    ...",
        setup=_small("my_prefix_sum"),
        call="f(x)",
        want=np.cumsum(BLOCKS, 0).reshape(16, 2),
        budget=3 * 16,
        forbidden=OTHERS,
        wrong=(
            Wrong(
                "before",
                "The device's own block is missing: devices 0 to d, d included.",
                value=(np.cumsum(BLOCKS, 0) - BLOCKS).reshape(16, 2),
            ),
            Wrong(
                "closed",
                "Every device has the sum of all: leave the pairs out that go around the end.",
                value=np.tile(BLOCKS.sum(0), (8, 1)),
            ),
            Wrong(
                "ring",
                "Send the sum of all that is known, to the device 1, 2 and 4 further on.",
                uses="bytes",
            ),
        ),
        hints=(
            "After a round with distance k, device d has the sum of 2 k blocks.",
            "Round k = 1, 2, 4: `x + ppermute(x, axis, [(j, j + k) for j in range(n - k)])`.",
        ),
    ),
    Exercise(
        name="roll",
        task="Roll the whole array by one row: `np.roll(x, 1, axis=0)`.",
        start="def my_roll(x, axis):\n    # x: (2, 2) on each of eight devices\n    ...",
        setup=_small("my_roll"),
        call="f(x)",
        want=np.roll(SMALL, 1, 0),
        budget=8,
        forbidden=OTHERS,
        wrong=(
            Wrong(
                "blocks",
                "Each block was rolled by itself: its first row is the last one of the device "
                "before.",
                value=np.roll(BLOCKS, 1, 1).reshape(16, 2),
            ),
            Wrong("whole", "One row of each block changes devices: send that.", uses="bytes"),
        ),
        hints=("`jnp.concatenate` of the row that comes, and all rows but the last.",),
    ),
    Exercise(
        name="halo",
        task="Put the neighbours' nearest rows above and below each block; zeros at both ends.",
        start="def my_halo(x, axis):\n    # x: (2, 3) on a device; returns (4, 3)\n    ...",
        setup=mapped("my_halo", 'P("i")', x=("table(16, 3)", '"i"')),
        call="f(x)",
        want=_halos(np.zeros((1, 3), np.float32), np.zeros((1, 3), np.float32)),
        budget=2 * 12,
        forbidden=OTHERS,
        wrong=(
            Wrong(
                "swapped",
                "The rows above and below have changed places. The row above is the last one of "
                "the device before: it is sent from j to j + 1.",
                value=_halos(
                    np.zeros((1, 3), np.float32), np.zeros((1, 3), np.float32), swapped=True
                ),
            ),
            Wrong(
                "periodic",
                "The first device has the last one's row: leave the pair (n - 1, 0) out, and "
                "`ppermute` gives zeros.",
                value=_halos(WIDE[-1:], WIDE[:1]),
            ),
            Wrong("whole", "Send one row each way, not the block.", uses="bytes"),
        ),
        hints=(
            "`x[-1:]` goes down, `x[:1]` goes up.",
            "Down: `[(j, j + 1) for j in range(n - 1)]`.",
        ),
    ),
    Exercise(
        name="ring_matmul",
        task="Multiply `x`, of which you have rows, by `w`, of whose n rows you have one.",
        start="def my_ring_matmul(x, w, axis):\n    # x: (2, 8), w: (1, 4) on a device\n    ...",
        setup=mapped(
            "my_ring_matmul", 'P("i")', x=("table(16, 8)", '"i"'), w=("table(8, 4)", '"i"')
        ),
        call="f(x, w)",
        want=table(16, 8) @ table(8, 4),
        budget=7 * 16,
        forbidden=OTHERS,
        wrong=(
            Wrong(
                "column",
                "In step k you have the row of w of device me - k: it belongs to that column of x.",
                value=_product(lambda _, k: k),
            ),
            Wrong(
                "direction",
                "The rows of w come from the devices before: the column is `(me - k) % n`.",
                value=_product(lambda d, k: d + k),
            ),
        ),
        hints=(
            "x @ w is the sum over k of column k of x times row k of w.",
            "Pass w around the ring, and add `x[:, [owner]] @ w` each time.",
        ),
    ),
    Exercise(
        name="transpose",
        task="Transpose a square matrix of which you have rows; `all_to_all` is allowed.",
        start="def my_transpose(x, axis):\n    # x: (2, 16) on a device; returns as much\n    ...",
        setup=mapped("my_transpose", 'P("i")', x=("table(16, 16)", '"i"')),
        call="f(x)",
        want=table(16, 16).T,
        budget=7 * 16,
        forbidden=("all-gather", "all-reduce"),
        wrong=(
            Wrong(
                "blocks",
                "The blocks are where they belong, but each of them has to be transposed too.",
                value=table(16, 16).reshape(8, 2, 8, 2).transpose(2, 1, 0, 3).reshape(16, 16),
            ),
            Wrong(
                "inside",
                "Each block is transposed, but blocks have to change places too.",
                value=table(16, 16).reshape(8, 2, 8, 2).transpose(0, 3, 2, 1).reshape(16, 16),
            ),
            Wrong(
                "gather",
                "To gather the matrix sends eight times what is needed: each device needs two "
                "columns only, an `all_to_all`.",
                uses="all-gather",
            ),
        ),
        hints=(
            "A transpose of a matrix of blocks: blocks change places, and each is transposed.",
            "`jax.lax.all_to_all(x.T, axis, 0, 1, tiled=True)`: what does x.T look like?",
        ),
    ),
)
