"""Orbax over reconnects: a process is killed while a checkpoint is written in the background."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jaxnb.errors import CellError, ProcessDiedError
from jaxnb.session import Session
from support.fixtures import PATIENT_SECONDS

pytestmark = pytest.mark.thorough


SETUP = """
import os
import orbax.checkpoint as ocp
from orbax.checkpoint._src.futures.synchronization import OperationIdGenerator
n = jax.device_count()
mesh = jax.make_mesh((n,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
def make(size, spec):
    whole = np.arange(size, dtype=np.float32)
    return jax.make_array_from_callback((size,), NamedSharding(mesh, spec), lambda i: whole[i])
def manager_of():
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=True)
    return ocp.CheckpointManager({folder!r}, options=options)
manager = manager_of()
state = {{"x": make(4 * n, P("d")), "w": make(5, P())}}
manager.save(0, args=ocp.args.StandardSave(state))
manager.wait_until_finished()
"""

FAULT = """
manager.save({step}, args=ocp.args.StandardSave({{"x": make(1 << 20, P("d")), "w": state["w"]}}))
if process_index == {process_index}: {fault}
manager.wait_until_finished()
float(jnp.sum(make(n, P("d"))))
"""

# A save waits on each process for the directory, which process 0 announces under the number of
# the operation: whoever has another number writes before it is there, or hangs.
AGAIN = """
like = jax.tree.map(
    lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding),
    {{"x": make(4 * n, P("d")), "w": make(5, P())}})
state = manager.restore(0, args=ocp.args.StandardRestore(like))
assert float(jnp.sum(state["x"])) == sum(range(4 * n))
manager.save({step}, args=ocp.args.StandardSave(state))
manager.wait_until_finished()
({step} in manager.all_steps(), OperationIdGenerator.get_current_operation_id())
"""


def test_checkpoints_go_on(make_session: Callable[..., Session], tmp_path: Path) -> None:
    """After an error with the old managers; after a death with new ones on all processes."""
    session = make_session(4, devices_per_process=2)
    session.run(SETUP.format(folder=str(tmp_path)), timeout=PATIENT_SECONDS)
    with pytest.raises(CellError):
        session.run(
            FAULT.format(step=1, process_index=2, fault="raise ValueError"), timeout=PATIENT_SECONDS
        )
    assert session.state == "ready"
    assert session.run(AGAIN.format(step=10), timeout=PATIENT_SECONDS).value[0] is True
    # Process 0 is the one that commits. Whether the step of a fault is there, processes may see
    # unequally, so the next one is further on.
    for dies, step in ((2, 20), (0, 30)):
        fault = FAULT.format(step=step - 9, process_index=dies, fault="os._exit(1)")
        with pytest.raises(ProcessDiedError):
            session.run(fault, timeout=PATIENT_SECONDS)
        recovered = session.recover()
        assert recovered.died == (dies,)
        assert {lost.path for lost in recovered.lost} == {"manager", "state['x']"}
        session.run("manager = manager_of()", timeout=PATIENT_SECONDS)
        # One value: all processes are at the same number.
        assert session.run(AGAIN.format(step=step), timeout=PATIENT_SECONDS).value[0] is True
