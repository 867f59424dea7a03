"""All that jaxnb uses of other packages and that they do not promise to keep."""

from __future__ import annotations

from jaxnb.compat import (
    ipykernel_input,
    ipykernel_output,
    ipykernel_requests,
    ipyparallel_client,
    ipyparallel_controller,
    ipython_help,
    ipython_shell,
    jax_uses,
)

USES = (
    *jax_uses.USES,
    *ipykernel_requests.USES,
    *ipykernel_output.USES,
    *ipykernel_input.USES,
    *ipython_shell.USES,
    *ipython_help.USES,
    *ipyparallel_client.USES,
    *ipyparallel_controller.USES,
)
"""The table in ``docs/reference/compat.md`` is made of these."""
