"""How long a call takes at least: the scaling book's examples, and what cannot be said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxnb.compiled.compiling import Collectives
from jaxnb.errors import UsageError
from jaxnb.model.arrays import MeshInfo
from jaxnb.model.compiled import Collective, CompiledReport, Part
from jaxnb.pictures.exchange import sent_bytes


def gathered(nbytes: int, size: int, axes: tuple[str, ...] = ("Y",)) -> Collectives:
    """An all-gather over so many devices that gives each so many bytes."""
    sent = sent_bytes("all-gather", nbytes, size)
    group, part = tuple(range(size)), Part("bfloat16", (nbytes // 2,), nbytes)
    each = Collective("all-gather", axes, True, (group,), (part,), sent, sent, 1)
    mesh = MeshInfo(("X", "Y"), (8, size), ("Auto",) * 2, tuple(range(8 * size)))
    return Collectives(CompiledReport("f", "cpu", 8 * size, (mesh,), (each,), flops=197e6))


# "How to Scale Your Model", https://jax-ml.github.io/scaling-book/sharding: TPU v5e.
E, F = 2048, 8192
ONE_WAY, BOTH_WAYS = 4.5e10, 9e10


def test_an_all_gather_without_wraparound() -> None:
    """Pop quiz 2: three hops of 8.4 MB take 560 µs."""
    found = gathered(E * F * 2, 4).roofline(197e12, {"Y": ONE_WAY})
    assert found.axis_seconds[("Y",)] == pytest.approx(560e-6, rel=0.01)
    assert found.bound == ("Y",)


def test_around_a_large_ring_it_takes_the_bytes_over_the_bandwidth() -> None:
    """The book leaves out (n - 1)/n: 377 µs on one axis; half of that on two."""
    one = gathered(E * F * 2, 256).roofline(197e12, {"Y": BOTH_WAYS})
    assert one.axis_seconds[("Y",)] == pytest.approx(377e-6, rel=0.02)
    two = gathered(E * F * 2, 256, ("X", "Y")).roofline(197e12, dict.fromkeys("XY", BOTH_WAYS))
    assert two.axis_seconds[("X", "Y")] == pytest.approx(377e-6 / 2, rel=0.02)


def test_what_bounds_a_call() -> None:
    found = gathered(1 << 20, 4).roofline(197e12, {"Y": 9e15})
    assert found.bound == ()
    assert found.seconds[0] == found.compute_seconds == pytest.approx(1e-6)
    assert found.seconds[1] > found.seconds[0]
    assert "bound by computing" in str(found)
    assert "bound by the collectives over Y" in str(gathered(1 << 20, 4).roofline(1e20, {"Y": 1e9}))
    loops = Collectives(replace(gathered(8, 4).report, has_loops=True, widened=True))
    text = str(loops.roofline(1e12, {"Y": 1e9})).replace("\n", " ")
    assert "the body of a loop once" in text
    assert "moves bfloat16 as float32" in text


@pytest.mark.parametrize(
    ("flops", "bandwidth", "said"),
    [
        (1e12, {}, "along Y, whose bandwidth was not given.*--bandwidth Y=9e10"),
        (1e12, {"Z": 1e9}, "no axis 'Z'"),
        (0.0, {"Y": 1e9}, "above zero"),
        (1e12, {"Y": float("nan")}, "above zero"),
    ],
)
def test_speeds_that_are_not_possible(flops: float, bandwidth: dict[str, float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        gathered(1 << 20, 4).roofline(flops, bandwidth)
