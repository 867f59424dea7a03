"""What JAX's guide and its examples of several processes do, beside the guide's first script."""

import os

os.environ["XLA_FLAGS"] = "--xla_gpu_nccl_terminate_on_error=false"

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax.experimental.multihost_utils import (
    live_devices,
    process_allgather,
    sync_global_devices,
)
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

PROCESS_ID = flags.DEFINE_integer("i", -1, "Process id")
NUM_PROCESSES = flags.DEFINE_integer("n", -1, "Number of processes")


def spread(devices):
    mesh = jax.make_mesh((len(devices),), ("d",), devices=devices)
    return NamedSharding(mesh, P("d"))


def main(_):
    jax.config.update("jax_enable_recoverability", True)
    jax.distributed.initialize(
        coordinator_address="localhost:9000",
        num_processes=NUM_PROCESSES.value,
        process_id=PROCESS_ID.value,
        local_device_ids=[PROCESS_ID.value],
        heartbeat_timeout_seconds=10,
    )
    count, mine = jax.device_count(), jax.local_device_count()
    rows = np.full((mine, 3), jax.process_index(), np.float32)
    loaded = jax.make_array_from_process_local_data(spread(jax.devices()), rows)
    print("loaded", jnp.sum(loaded))

    parts = [jax.device_put(jnp.full(1, d.id), d) for d in jax.local_devices()]
    ids = jax.make_array_from_single_device_arrays((count,), spread(jax.devices()), parts)
    assert process_allgather(ids, tiled=True).tolist() == [d.id for d in jax.devices()]

    half = jax.device_put(np.arange(count // 2), spread(jax.devices()[count // 2 :]))
    print("half", jnp.sum(half))  # on who has none of its devices, an array without a value

    with live_devices(jax.devices()) as devices:
        jax.set_mesh(jax.make_mesh((len(devices),), ("i",), devices=devices))
        print("live", jnp.sum(jax.device_put(jnp.arange(count), P("i"))))
    if jax.process_index() == 0:
        jax.debug.visualize_array_sharding(loaded)
    sync_global_devices("end")
    jax.distributed.shutdown()


if __name__ == "__main__":
    app.run(main)
