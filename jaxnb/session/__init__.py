"""A session owns its parts: a group's life, the work on it, cells, transfers, recovery, history."""

from jaxnb.session.session import Session as Session
