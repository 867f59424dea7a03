"""What is moved between the notebook and a group, in what ways, and whether it arrived.

Element ``i`` of every array is ``i``, so that each process can make its part, and check what it
got, on its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.processes import group

Array = npt.NDArray[np.int32]

SLICE = slice(1000, 1010)
LEAVES = 200
LEAF_SHAPE = (64, 256)  # 64 KiB

# Runs in every process of either group.
PROCESS_CODE = """
import jax, numpy as np
from jax.experimental.multihost_utils import process_allgather

mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

def counted(shape, index=(slice(None), slice(None))):
    rows, columns = index
    first, last, _ = rows.indices(shape[0])
    part = np.arange(first * shape[1], last * shape[1], dtype=np.int32)
    return part.reshape(-1, shape[1])[:, columns]

def sharding(spec):
    return jax.NamedSharding(mesh, jax.P(*spec))

def spread(shape, spec, get):
    made = jax.make_array_from_callback(shape, sharding(spec), get)
    return jax.block_until_ready(made)

def make(shape, spec):
    return spread(shape, spec, lambda index: counted(shape, index))

def mine(array):
    return np.asarray(array.addressable_data(0))

def holds(array, spec):
    return array.sharding.is_equivalent_to(sharding(spec), array.ndim) and all(
        np.array_equal(shard.data, counted(array.shape, shard.index))
        for shard in array.addressable_shards)
"""
MAKE_TREE = "tree = {{f'leaf{{i:03}}': make({shape}, ('x', None)) for i in range({leaves})}}"


class Wrong(RuntimeError):
    """What arrived is not what was sent."""


@dataclass(frozen=True)
class Work:
    """What is to be moved.

    Attributes:
        shape: Of the whole array.
        spec: How it is laid out over the axis ``x`` of all devices.
    """

    shape: tuple[int, int]
    spec: tuple[str | None, ...] = ("x", None)

    @property
    def num_bytes(self) -> int:
        """Size of the whole array."""
        return 4 * self.shape[0] * self.shape[1]

    def host(self) -> Array:
        """The whole array, in this process."""
        return np.arange(self.shape[0] * self.shape[1], dtype=np.int32).reshape(self.shape)


@dataclass(frozen=True)
class Way:
    """One way of moving something.

    Attributes:
        move: The work that is measured; returns what arrived in the notebook, if it does.
        check: Raises :class:`Wrong` unless it is what was sent.
        drop: Frees what the move has left in the processes and in the notebook's client.
        copies: How many times the array's size it needs at least, where that is known: a small
            array, which fits into memory that a process has kept, shows less.
    """

    move: Callable[[], Any]
    check: Callable[[Any], None]
    drop: Callable[[], None]
    copies: float = 0.0


def nothing() -> None:
    """Leave everything as it is."""


def equals(expected: Array) -> Callable[[Any], None]:
    """A check that what arrived in the notebook is ``expected``."""

    def check(found: Any) -> None:
        if not np.array_equal(found, expected):
            raise Wrong(f"expected {expected!r}, got {found!r}")

    return check


def tree_equals(tree: dict[str, Array]) -> Callable[[Any], None]:
    """A check that a dictionary of arrays arrived whole."""

    def check(found: Any) -> None:
        if sorted(found) != sorted(tree):
            raise Wrong(f"expected {len(tree)} leaves, got {len(found)}")
        for name, leaf in tree.items():
            equals(leaf)(found[name])

    return check


def host_tree() -> dict[str, Array]:
    """Many small arrays, in this process."""
    leaf = Work(LEAF_SHAPE).host()
    return {f"leaf{i:03}": leaf.copy() for i in range(LEAVES)}


class Mover(Protocol):
    """A group with its ways of moving arrays."""

    pids: list[int]

    def prepare(self, work: Work) -> None:
        """Have the work's array on every process as ``x``; not measured."""

    def pulls(self, work: Work, host: Array) -> dict[str, Way]:
        """Name to way of getting ``x`` into the notebook."""

    def pushes(self, work: Work, host: Array) -> dict[str, Way]:
        """Name to way of making the notebook's array a global one."""

    def slice_pulls(self, host: Array) -> dict[str, Way]:
        """Name to way of getting a few rows of ``x``, all of them on the first process."""

    def tree_pulls(self, tree: dict[str, Array]) -> dict[str, Way]:
        """Name to way of getting many small global arrays."""

    def tree_pushes(self, tree: dict[str, Array]) -> dict[str, Way]:
        """Name to way of making many small global arrays."""

    def stop(self) -> None:
        """End the group."""


class GroupMover(ABC):
    """What movers with a group of processes have in common.

    Args:
        num_processes: Size of the group, which is started here.

    Attributes:
        pids: The processes that were started, helpers included.
    """

    def __init__(self, num_processes: int) -> None:
        before = {process.pid for process in group()}
        self.start(num_processes)
        self.pids = [process.pid for process in group() if process.pid not in before]
        self.run(PROCESS_CODE)

    @abstractmethod
    def start(self, num_processes: int) -> None:
        """Start the group."""

    @abstractmethod
    def run(self, code: str) -> None:
        """Run code on every process."""

    def make_tree(self) -> None:
        """Have the dictionary of small global arrays on every process as ``tree``."""
        self.run(MAKE_TREE.format(shape=LEAF_SHAPE, leaves=LEAVES))

    def require(self, condition: str) -> None:
        """Raise unless a condition holds on every process."""
        self.run(f"assert {condition}, {condition!r}")


class Memcpy:
    """One copy into fresh memory in this process: what no pull can beat by much."""

    def __init__(self) -> None:
        self.pids: list[int] = []

    def pulls(self, work: Work, host: Array) -> dict[str, Way]:
        """``host.copy()``."""
        return {"memcpy": Way(host.copy, equals(host), nothing)}
