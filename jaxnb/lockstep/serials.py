"""What a group is asked, by number: the conductor knows cells, and joint requests, by these."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from jaxnb.model.cells import JointRequest
from jaxnb.model.dispatches import CheckMode


class Serials:
    """Numbers cells and joint requests: of several the later one's is larger."""

    def __init__(self) -> None:
        self._count = itertools.count(1)

    def __next__(self) -> int:
        return next(self._count)

    def joint(self, check: CheckMode, requests: Mapping[int, Any]) -> dict[int, JointRequest]:
        """Makes one question of what several processes are asked together.

        Args:
            check: How the group is checked.
            requests: Process index to request.
        """
        serial, ranks = next(self), tuple(sorted(requests))
        return {i: JointRequest(serial, ranks, check, each) for i, each in requests.items()}
