"""Nothing is unpickled that no signature covers, in the notebook and in the processes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ipyparallel.serialize import serialize_object

from jaxnb.session import Session
from support.fixtures import assert_usable


class Trap:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self._path), "w")


PUBLISH = """
from jaxnb.wire.messages import METADATA_KEY
kernel = get_ipython().kernel
parent = kernel.get_parent("shell")
for kind, metadata in [("data_message", {{}}), ("execute_result", {{}}), ("data_message", {{METADATA_KEY: "0"}})]:
    kernel.session.send(
        kernel.iopub_socket, kind, {{}}, parent=parent, metadata=metadata, buffers=[{payload!r}] * 3
    )
print("sent")
"""  # noqa: E501


def test_the_notebook_unpickles_no_data_message(session: Session, tmp_path: Path) -> None:
    """ipyparallel would: its buffers are not covered by the message's signature."""
    trap = tmp_path / "notebook"
    result = session.run(PUBLISH.format(payload=pickle.dumps(Trap(trap))), ranks=[0])
    assert result.stdout == "[0] sent\n"  # what was sent before has been received
    assert not trap.exists()
    assert_usable(session)


@pytest.mark.thorough
def test_a_process_unpickles_no_request_of_ipyparallels(
    make_session: Callable[..., Session], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = make_session(1)
    transport = session._life.transport
    client = transport._client
    trap = tmp_path / "process"
    buffers = [pickle.dumps(Trap(trap))] * 3 + serialize_object(None)
    client._send(client._mux_stream, "apply_request", buffers=buffers, ident=transport._uuids[0])
    # The answer has no digest, so the notebook drops it in turn; the cell's comes after it.
    assert session.run("1").value == 1
    assert "dropped a reply whose buffers were not signed" in caplog.text
    assert not trap.exists()
