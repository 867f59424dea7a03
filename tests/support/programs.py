"""Six programs that people shard, for 8 devices, and what each has to send: by hand.

Sizes are small and different, so that no two numbers are equal by accident. A float32 has 4
bytes, a complex64 has 8. `n` is the size of a group.

    all-reduce          2 (n-1)/n × result
    all-gather            (n-1)/n × result
    reduce-scatter          (n-1) × result   (its input is n times as large)
    all-to-all            (n-1)/n × result
    collective-permute              result, of each device that sends

The documentation's page on collectives shows them, and their bytes, from here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

COMMON = """
from functools import partial
Auto = jax.sharding.AxisType.Auto
def abstract(mesh, shape, *spec, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))
"""


@dataclass(frozen=True)
class Row:
    """A collective by hand.

    Attributes:
        kind: What XLA calls it.
        axes: The axes of the mesh over which it goes.
        group_size: How many devices exchange.
        result: What each gets.
        sends: The bytes that each device sends once, as a product: ``"7/8 · 64 · 4"``.
        why: What is sent.
        count: How often it is executed.
    """

    kind: str
    axes: tuple[str, ...]
    group_size: int
    result: str
    sends: str
    why: str
    count: int = 1

    @property
    def facts(self) -> tuple[object, ...]:
        """What the compiler is asked for: kind, axes, size of a group, result, bytes, count."""
        return self.kind, self.axes, self.group_size, self.result, self.bytes, self.count

    @property
    def bytes(self) -> int:
        """The bytes that each device sends, once."""
        return int(math.prod(map(Fraction, self.sends.split(" · "))))


@dataclass(frozen=True)
class Program:
    """Code that defines it, the call, its collectives by hand, and the notebook that teaches it."""

    setup: str
    call: str
    rows: tuple[Row, ...]
    notebook: str


FSDP = Program(
    """
fsdp_mesh = jax.make_mesh((8,), ("data",), axis_types=(Auto,))
@jax.jit
@partial(jax.shard_map, mesh=fsdp_mesh, in_specs=(P("data"), P("data")), out_specs=P("data"))
def fsdp_step(w, x):
    def loss(shard):
        whole = jax.lax.all_gather(shard, "data", axis=0, tiled=True)
        return jnp.sum(jnp.tanh(x @ whole) ** 2)
    return w - 0.1 * jax.grad(loss)(w)
""",
    "fsdp_step(abstract(fsdp_mesh, (64, 128), 'data'), abstract(fsdp_mesh, (32, 64), 'data'))",
    (
        Row("all-gather", ("data",), 8, "float32[64, 128]", "7/8 · 64 · 128 · 4", "weights, whole"),
        Row(
            "reduce-scatter",
            ("data",),
            8,
            "float32[8, 128]",
            "7 · 8 · 128 · 4",
            "gradient; keeps 8 × 128",
        ),
    ),
    "06_data_parallel_to_fsdp",
)

TENSOR = Program(
    """
tensor_mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(Auto, Auto))
@partial(jax.jit, out_shardings=NamedSharding(tensor_mesh, P("data", None)))
def tensor_mlp(x, w1, w2):
    return jnp.tanh(x @ w1) @ w2
""",
    "tensor_mlp(abstract(tensor_mesh, (16, 64), 'data', None), "
    "abstract(tensor_mesh, (64, 128), None, 'model'), "
    "abstract(tensor_mesh, (128, 64), 'model', None))",
    (
        Row(
            "all-reduce",
            ("model",),
            4,
            "float32[8, 64]",
            "2 · 3/4 · 8 · 64 · 4",
            "a summand of 8 × 64",
        ),
    ),
    "07_tensor_and_sequence_parallel",
)

RING = Program(
    """
ring_mesh = jax.make_mesh((8,), ("seq",), axis_types=(Auto,))
@jax.jit
@partial(jax.shard_map, mesh=ring_mesh, in_specs=P("seq", None), out_specs=P("seq", None))
def ring_attention(q, k, v):
    around = [(i, (i + 1) % 8) for i in range(8)]
    def step(carry, _):
        k, v, out, total = carry
        scores = jnp.exp(q @ k.T)
        out, total = out + scores @ v, total + scores.sum(-1, keepdims=True)
        k, v = jax.lax.ppermute(k, "seq", around), jax.lax.ppermute(v, "seq", around)
        return (k, v, out, total), None
    start = (k, v, 0 * v, 0 * v[:, :1])
    (_, _, out, total), _ = jax.lax.scan(step, start, None, length=8)
    return out / total
""",
    "ring_attention(abstract(ring_mesh, (64, 32), 'seq', None), "
    "abstract(ring_mesh, (64, 32), 'seq', None), abstract(ring_mesh, (64, 16), 'seq', None))",
    (
        Row("collective-permute", ("seq",), 8, "float32[8, 32]", "8 · 32 · 4", "keys", 8),
        Row("collective-permute", ("seq",), 8, "float32[8, 16]", "8 · 16 · 4", "values", 8),
    ),
    "09_long_context_and_experts",
)

MOE = Program(
    """
moe_mesh = jax.make_mesh((2, 4), ("data", "expert"), axis_types=(Auto, Auto))
@jax.jit
@partial(jax.shard_map, mesh=moe_mesh, in_specs=(P(("data", "expert")), P("expert")),
         out_specs=P(("data", "expert")))
def moe_layer(x, w):
    sent = jax.lax.all_to_all(x.reshape(4, -1, x.shape[-1]), "expert", 0, 0, tiled=True)
    done = jnp.tanh(sent @ w[0])
    return jax.lax.all_to_all(done, "expert", 0, 0, tiled=True).reshape(x.shape[0], -1)
""",
    "moe_layer(abstract(moe_mesh, (128, 32), ('data', 'expert')), "
    "abstract(moe_mesh, (4, 32, 48), 'expert'))",
    (
        # XLA for CPUs makes arrays of them, one for each expert.
        Row(
            "all-to-all",
            ("expert",),
            4,
            "4 × float32[1, 4, 32]",
            "3/4 · 16 · 32 · 4",
            "16 tokens of 32",
        ),
        Row(
            "all-to-all",
            ("expert",),
            4,
            "4 × float32[1, 4, 48]",
            "3/4 · 16 · 48 · 4",
            "16 of 48 back",
        ),
    ),
    "09_long_context_and_experts",
)

HALO = Program(
    """
halo_mesh = jax.make_mesh((8,), ("x",), axis_types=(Auto,))
@jax.jit
@partial(jax.shard_map, mesh=halo_mesh, in_specs=P("x", None), out_specs=P("x", None))
def halo_steps(u):
    def step(_, u):
        above = jax.lax.ppermute(u[-1:], "x", [(i, i + 1) for i in range(7)])
        below = jax.lax.ppermute(u[:2], "x", [(i + 1, i) for i in range(7)])
        padded = jnp.concatenate([above, u, below])
        return (padded[:-3] + padded[1:-2] + padded[3:]) / 3
    return jax.lax.fori_loop(0, 10, step, u)
""",
    "halo_steps(abstract(halo_mesh, (64, 24), 'x', None))",
    (
        # The device at the edge sends nothing.
        Row("collective-permute", ("x",), 8, "float32[1, 24]", "24 · 4", "a row to the next", 10),
        Row(
            "collective-permute",
            ("x",),
            8,
            "float32[2, 24]",
            "2 · 24 · 4",
            "two rows to the one before",
            10,
        ),
    ),
    "10_pde_with_halos",
)

FFT = Program(
    """
fft_mesh = jax.make_mesh((2, 4), ("rows", "columns"), axis_types=(Auto, Auto))
@jax.jit
@partial(jax.shard_map, mesh=fft_mesh, in_specs=P("rows", "columns"),
         out_specs=P(None, "rows", "columns"))
def fft_3d(x):
    x = jax.lax.all_to_all(jnp.fft.fft(x, axis=2), "columns", 2, 1, tiled=True)
    x = jax.lax.all_to_all(jnp.fft.fft(x, axis=1), "rows", 1, 0, tiled=True)
    return jnp.fft.fft(x, axis=0)
""",
    "fft_3d(abstract(fft_mesh, (8, 16, 16), 'rows', 'columns', dtype=jnp.complex64))",
    (
        Row(
            "all-to-all",
            ("columns",),
            4,
            "4 × complex64[4, 4, 4]",
            "3/4 · 4 · 4 · 16 · 8",
            "4 × 4 × 16 of each",
        ),
        Row(
            "all-to-all",
            ("rows",),
            2,
            "2 × complex64[4, 8, 4]",
            "1/2 · 4 · 16 · 4 · 8",
            "4 × 16 × 4 of each",
        ),
    ),
    "11_fft_by_slabs_and_pencils",
)

PROGRAMS = {
    "FSDP": FSDP,
    "tensor parallel": TENSOR,
    "ring attention": RING,
    "MoE": MOE,
    "halo exchange": HALO,
    "3-D FFT": FFT,
}

GPU_TEXT = """HloModule jit_step, is_scheduled=true, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%body (carry: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {
  %carry = (s32[], f32[8,128]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%carry), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %x = f32[8,128]{1,0} get-tuple-element(%carry), index=1
  %permute-start = (f32[8,128]{1,0}, f32[8,128]{1,0}) collective-permute-start(%x), \
channel_id=4, source_target_pairs={{0,1},{1,2},{2,3},{3,4},{4,5},{5,6},{6,7},{7,0}}, \
metadata={op_name="jit(step)/ppermute" source_file="/home/me/train.py" source_line=20}
  %permute-done = f32[8,128]{1,0} collective-permute-done(%permute-start)
  ROOT %tuple = (s32[], f32[8,128]{1,0}) tuple(%next, %permute-done)
}

%condition (carry.1: (s32[], f32[8,128])) -> pred[] {
  %carry.1 = (s32[], f32[8,128]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%carry.1), index=0
  %six = s32[] constant(6)
  ROOT %less = pred[] compare(%i.1, %six), direction=LT
}

ENTRY %main (w: f32[8,128], u: f32[192], v: f32[64]) -> f32[8,128] {
  %w = f32[8,128]{1,0} parameter(0)
  %u = f32[192]{0} parameter(1)
  %v = f32[64]{0} parameter(2)
  %all-gather-start = (f32[8,128]{1,0}, f32[64,128]{1,0}) all-gather-start(%w), channel_id=1, \
replica_groups=[1,8]<=[8], dimensions={0}, use_global_device_ids=true, \
metadata={op_name="jit(step)/all_gather" source_file="/home/me/train.py" source_line=12}, \
backend_config={"collective_backend_config":{"is_sync":false}}
  %all-gather-done = f32[64,128]{1,0} all-gather-done(%all-gather-start)
  %reduce-scatter-start = ((f32[64,128]{1,0}), \
f32[8,128]{1,0}) reduce-scatter-start(%all-gather-done), channel_id=2, \
replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true, dimensions={0}, to_apply=%add, \
metadata={op_name="jit(step)/psum_scatter" source_file="/home/me/train.py" source_line=14}
  %reduce-scatter-done = f32[8,128]{1,0} reduce-scatter-done(%reduce-scatter-start)
  %all-reduce-start = (f32[192]{0}, f32[64]{0}) all-reduce-start(%u, %v), channel_id=3, \
replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=%add
  %all-reduce-done = (f32[192]{0}, f32[64]{0}) all-reduce-done(%all-reduce-start)
  %zero = s32[] constant(0)
  %start = (s32[], f32[8,128]{1,0}) tuple(%zero, %reduce-scatter-done)
  %while = (s32[], f32[8,128]{1,0}) while(%start), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"6"}}
  %y = f32[8,128]{1,0} get-tuple-element(%while), index=1
  %all-to-all-start = ((f32[8,128]{1,0}), f32[8,128]{1,0}) all-to-all-start(%y), channel_id=5, \
replica_groups=[1,8]<=[8], dimensions={0}
  ROOT %all-to-all-done = f32[8,128]{1,0} all-to-all-done(%all-to-all-start)
}
"""
"""In the form in which XLA's GPU compiler schedules: pairs of every kind, two combined."""
