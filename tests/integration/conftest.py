"""What the integration tests share beside ``jaxnb_fixtures``."""

from __future__ import annotations

import pytest

from jaxnb.session import Session

# IPython's own %reset collects garbage: up to a second a test for four processes on two cores.
CLEAR = """
def _clear(shell=get_ipython()):
    import jaxnb.engine.bootstrap as bootstrap
    for name in list(shell.user_ns):
        if not name.startswith("_") and name not in shell.user_ns_hidden:
            del shell.user_ns[name]
    shell.push(bootstrap.namespace(), interactive=False)
_clear()
"""


@pytest.fixture
def session(shared_session: Session) -> Session:
    """The shared group with a cleared namespace; ``Out`` and ``_`` stay."""
    shared_session.run(CLEAR)
    return shared_session
