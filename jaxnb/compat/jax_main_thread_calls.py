"""The main thread's calls of jitted functions apart from others', by a private name of JAX's."""

from __future__ import annotations

from typing import Any

_MAIN, _OTHER = "main", "other"

_lane: Any = None


def separate_main_thread() -> str:
    """Has C++ find the main thread's calls of jitted functions apart from other threads' calls.

    It has a thread wait while another one calls the same function with such arguments for the
    first time. That call may wait for other processes, whose main threads come to theirs before
    the thread that it waits for: for ever. Now it does not wait for the main thread's, nor that for
    it. Nothing is traced or compiled anew: only what C++ has found is kept twice.

    Call it in the main thread.

    Returns:
        Why that is not possible where this JAX lacks a name; empty if it was done.
    """
    global _lane
    try:
        from jax._src import config

        if _lane is None:  # JAX has it for good then
            _lane = config.config_ext.Config("jaxnb_lane", _OTHER, include_in_jit_key=True)
        _lane.set_local(_MAIN)
    except (ImportError, AttributeError, TypeError) as error:
        return str(error)
    return ""
