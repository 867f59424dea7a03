"""The life of a group, and what is asked of it: :class:`Session` and its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxnb.session.session import Session

__all__ = ["Session"]


def __getattr__(name: str) -> Any:
    """Imports the notebook's side when it is asked for: processes import only theirs."""
    if name == "Session":
        from jaxnb.session.session import Session

        return Session
    raise AttributeError(name)
