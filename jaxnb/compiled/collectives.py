"""What a call compiles to: what ``session.collectives`` and ``jaxnb.plan`` return."""

from __future__ import annotations

from typing import Any

from jaxnb.compiled import collectives_table
from jaxnb.model.arrays import MeshInfo
from jaxnb.model.compiled import AxisTotal, Collective, CompiledReport, Memory


class Collectives(list[Collective]):
    """The collectives of a compiled call, in the order in which they stand in the program.

    A list; a notebook shows it as a table, ``print`` too. Nothing of it was run.

    Args:
        report: What the call compiles to.
        planned: It was compiled for devices that there need not be.

    Attributes:
        report: What it was made of.
        planned: As above.
    """

    def __init__(self, report: CompiledReport, *, planned: bool = False) -> None:
        super().__init__(report.collectives)
        self.report = report
        self.planned = planned

    @property
    def totals(self) -> tuple[AxisTotal, ...]:
        """What they move by the mesh axes that they go along, the most first."""
        return collectives_table.totals(self)

    @property
    def num_devices(self) -> int:
        """How many devices the program runs on."""
        return self.report.num_devices

    @property
    def meshes(self) -> tuple[MeshInfo, ...]:
        """The meshes that its shardings are on."""
        return self.report.meshes

    @property
    def flops(self) -> float | None:
        """What XLA counts of arithmetic on each device, loop bodies once; None if unknown."""
        return self.report.flops

    @property
    def accessed_bytes(self) -> float | None:
        """What XLA counts of memory read and written by each device, likewise."""
        return self.report.accessed_bytes

    @property
    def memory(self) -> Memory | None:
        """What the program needs of each device's memory; None if XLA does not say."""
        return self.report.memory

    def __str__(self) -> str:
        from jaxnb.compiled import card_collectives

        return card_collectives.collectives_card(self.report, planned=self.planned).text

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        # For text, IPython prefers its printer of lists to a mimebundle.
        printer.text(str(self))

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        from jaxnb.compiled import card_collectives

        card = card_collectives.collectives_card(self.report, planned=self.planned)
        return {"text/plain": card.text, "text/html": card.html}
