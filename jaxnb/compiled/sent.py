"""How many bytes each device sends, by the standard algorithms.

Ring algorithms for all-reduce, all-gather and reduce-scatter, pairwise exchange for
all-to-all: the bounds that every device's link has to carry, whatever the library does.
Sources: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication
Operations in MPICH", IJHPCA 19(1), 2005; NVIDIA's ``nccl-tests``, ``doc/PERFORMANCE.md``, whose
"bus bandwidth" counts the same bytes.
"""

from __future__ import annotations

from jaxnb.model.compiled import CollectiveKind


def sent_bytes(kind: CollectiveKind, result_bytes: int, group_size: int) -> int:
    """Returns what one execution makes each device send.

    Args:
        kind: The collective.
        result_bytes: Size of its result on one device.
        group_size: How many devices take part. A group of one sends nothing.

    Returns:
        Whole bytes, rounded up: what cannot be split evenly is padded.
    """
    n = group_size
    if n < 2:
        return 0
    match kind:
        case "all-reduce":  # a reduce-scatter, then an all-gather
            return _up(2 * (n - 1) * result_bytes, n)
        case "reduce-scatter":  # its input is n times its result
            return (n - 1) * result_bytes
        case "all-gather" | "all-to-all" | "ragged-all-to-all":
            return _up((n - 1) * result_bytes, n)
        case "collective-permute" | "collective-broadcast":
            return result_bytes


def _up(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
