"""A group that a file's tests share and may hurt, and the watch for what they leave behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import jaxnb
from jaxnb.session import Session
from support.fixtures import Left, assert_nothing_left
from support.hosts import Hosts
from support.remote import CELL, Program

SHARED = {"shared_group": "group", "shared_session": "session"}
"""A group that tests share, to the fixture that gives it to a test, with fresh processes if the
test before has hurt it."""


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """In the place of the one for all tests: fresh processes of a shared group are not left."""
    has_its_own = request.node.get_closest_marker("timing") is not None
    for shared, given in SHARED.items():
        if {shared, given} <= set(request.fixturenames) and not has_its_own:
            request.getfixturevalue(given)
    before = Left.now()
    yield
    assert_nothing_left(before)


@pytest.fixture(scope="module")
def shared_group() -> Iterator[Session]:
    with jaxnb.start(3, platform="cpu") as session:
        yield session


@pytest.fixture
def program(hosts: Hosts, request: pytest.FixtureRequest) -> Iterator[Program]:
    """Has a group, ``session``, as the file's ``START`` starts it; ends with it."""
    program = Program(hosts.a)
    program.do(request.module.START)
    assert program.do(f"session.run({CELL!r}).value") == 66
    yield program
    program.close()


@pytest.fixture(params=["direct", pytest.param("messages", marks=pytest.mark.thorough)])
def path(request: pytest.FixtureRequest) -> str:
    """The way of a transfer's data."""
    return str(request.param)
