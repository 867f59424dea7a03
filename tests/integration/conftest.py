"""What the integration tests share beside ``jaxnb_fixtures``."""

from __future__ import annotations

from jaxnb.session import Session
import pytest

# A plain `%reset` collects garbage twice: a second for four processes on two cores, a test.
CLEAR = """%reset -sf
import jaxnb.engine.bootstrap as b
get_ipython().push(b.namespace(), interactive=False)
del b"""


@pytest.fixture
def session(shared_session: Session) -> Session:
    """The shared group with a cleared namespace; ``Out`` stays."""
    shared_session.run(CLEAR)
    return shared_session
