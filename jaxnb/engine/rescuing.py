"""Reading this process's variables out while its main thread will never come back.

The notebook ends such a process by force and fills its replacement with what it had. Its memory is
readable all the while: values are pickled in a thread of their own, since a user's ``__reduce__``
may wait for something too, and stay in place for the notebook to read, until the process is killed.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import threading
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxnb.engine.exposures import as_bytes
from jaxnb.engine.handing import STATE, of_user, size_of_tree
from jaxnb.engine.layouts import layout_of
from jaxnb.engine.origins import ORIGINS
from jaxnb.engine.parcels import Packer
from jaxnb.engine.shards import host_view, shard_of
from jaxnb.pickling import OutOfBand

_OF_THE_MAIN_THREAD = ("jax.set_mesh(…)",)
"""State that another thread does not see."""

NAME_SECONDS = 1.5
"""To read one variable takes longer only if its own code waits: arrays stay where they are."""

Extent = tuple[int, int]
"""An address in this process's memory, and how many bytes there are."""


class _PatientPacker(Packer):
    """Waits for no computation: one that is under way may never end."""

    def _array(self, array: jax.Array) -> Any:
        checked: Any = array  # the type of all arrays does not tell of it
        if not array.is_deleted() and not checked.is_ready():
            raise pickle.PicklingError("its computation was broken off")
        return super()._array(array)


class _Parcel:
    """Values, pickled for this process's replacement, with this process's shards."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.names = list(values)
        file, out_of_band = io.BytesIO(), OutOfBand()
        packer = _PatientPacker(file, out_of_band)
        for name, value in values.items():  # with one memory: what they share stays shared
            packer.dump((name, value, size_of_tree(value)))
        self._origins = [ORIGINS.of(array) for array in packer.arrays]
        self._pickle = np.frombuffer(file.getvalue(), dtype=np.uint8)
        self._buffers = out_of_band.buffers
        self._pieces = [
            (k, shard.device_id, as_bytes(host_view(shard_of(array, shard.device_id))))
            for k, array in enumerate(packer.arrays)
            for shard in layout_of(array.sharding, tuple(array.shape), {}).shards
            if shard.process_index == jax.process_index()
        ]

    def plain(self) -> dict[str, Any]:
        return {
            "names": self.names,
            "origins": self._origins,
            "pickle": _extent(self._pickle),
            "buffers": [_extent(each) for each in self._buffers],
            "pieces": [[k, device, *_extent(data)] for k, device, data in self._pieces],
        }


def _extent(data: np.ndarray[Any, Any]) -> Extent:
    return data.ctypes.data, data.nbytes


class Rescuer:
    """Makes the variables of this process readable to the notebook, once it asks for them.

    A variable that cannot be read within ``NAME_SECONDS`` is left out, and the thread that reads it
    with it: what the main thread waits in may be that variable's own ``__reduce__``.

    Args:
        shell: The kernel's, which has the variables.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._nonce = np.frombuffer(os.urandom(16), dtype=np.uint8)
        self._turn = 0  # of the thread that reads; what another one still finds is dropped
        self._values: dict[str, Any] = {}
        self._left: list[str] = []
        self._reads: tuple[str, float] | None = None
        self._single: dict[str, _Parcel] = {}
        self._parcels: list[_Parcel] = []  # kept in place
        self._missing: dict[str, str] = {}
        self._is_done = False

    def answer(self) -> dict[str, Any]:
        """Begins at the first call; returns where everything is, once that is known."""
        if not self._turn:
            self._values = self._all_values()
            self._left = list(self._values)
            self._go_on()
        reads = self._reads
        if reads is not None and time.monotonic() - reads[1] > NAME_SECONDS:
            self._missing[reads[0]] = "reading it does not end"
            self._go_on()
        if not self._is_done:
            return {"is_done": False}
        return {
            "is_done": True,
            "pid": os.getpid(),
            "nonce": [self._nonce.ctypes.data, self._nonce.tobytes().hex()],
            "parcels": [parcel.plain() for parcel in self._parcels],
            "missing": self._missing,
        }

    def _all_values(self) -> dict[str, Any]:
        values = {name: read() for name, (read, _) in STATE.items()}
        for name in _OF_THE_MAIN_THREAD:
            values.pop(name, None)
        return values | of_user(dict(self._shell.user_ns), self._shell.user_ns_hidden)

    def _go_on(self) -> None:
        self._turn += 1
        self._reads = None
        name = "jaxnb-rescuer"
        threading.Thread(target=self._pack, args=(self._turn,), name=name, daemon=True).start()

    def _pack(self, turn: int) -> None:
        # One by one too, for a replacement that cannot take all: a module may be gone.
        while self._left and turn == self._turn:
            name = self._left.pop(0)
            self._reads = name, time.monotonic()
            made = _try(name, self._values[name])
            if turn != self._turn:
                return
            if isinstance(made, str):
                self._missing[name] = made
            else:
                self._single[name] = made
        self._reads = None
        parcels = list(self._single.values())
        with contextlib.suppress(Exception):  # what each gave alone it may refuse beside others
            if parcels:
                parcels.insert(0, _Parcel({name: self._values[name] for name in self._single}))
        self._parcels, self._is_done = parcels, True


def _try(name: str, value: Any) -> _Parcel | str:
    """Returns a variable for another process, or why it cannot be had."""
    try:
        return _Parcel({name: value})
    except (Exception, SystemExit) as error:  # a user's __reduce__, or a property of theirs
        is_of_pickle = isinstance(error, TypeError | pickle.PicklingError) and str(error)
        return str(error) if is_of_pickle else f"{type(error).__name__}: {error}"
