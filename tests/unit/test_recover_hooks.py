"""What :func:`jaxnb.on_recover` says where nothing is reconnected."""

from __future__ import annotations

import pytest

import jaxnb


def test_on_recover_outside_a_cell_warns() -> None:
    with pytest.warns(UserWarning, match="again` will never be called.*in a %%spmd cell") as told:

        @jaxnb.on_recover
        def again() -> None:
            raise AssertionError

    assert told[0].filename == __file__
