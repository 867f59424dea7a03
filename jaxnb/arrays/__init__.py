"""Pure: shard descriptions and bytes to one NumPy array, and back. No process, no jax.

``blocks`` tells who holds which part, ``preview`` shows the corners, ``regions`` slices,
``assembly`` puts parts together, ``specs`` reads partition specs, ``dtypes`` names dtypes,
``replicas`` puts the processes' descriptions together. ``regions``, ``assembly`` and ``dtypes``
load NumPy and are imported by their own names: the display does without.
"""

from __future__ import annotations

from jaxnb.arrays.blocks import (
    EDGE_ITEMS,
    Block,
    Index,
    Interval,
    PreviewSlice,
    blocks,
    boundaries,
    bytes_per_device,
    differing,
    each_its_own,
    edge_indices,
    elements_bytes,
    lying,
    merged,
    placing,
    preview,
    total_bytes,
)
from jaxnb.arrays.specs import Spec, is_spec, spec_text
from jaxnb.arrays.specs import normalize as normalize_spec
from jaxnb.arrays.specs import parse as parse_spec

__all__ = [
    "EDGE_ITEMS",
    "Block",
    "Index",
    "Interval",
    "PreviewSlice",
    "Spec",
    "blocks",
    "boundaries",
    "bytes_per_device",
    "differing",
    "each_its_own",
    "edge_indices",
    "elements_bytes",
    "is_spec",
    "lying",
    "merged",
    "normalize_spec",
    "parse_spec",
    "placing",
    "preview",
    "spec_text",
    "total_bytes",
]
