"""The process's end of the transport: jaxnb's requests beside ipyparallel's own.

A request travels as an ipyparallel ``apply_request`` whose metadata say that it is jaxnb's.
ipyparallel's handler runs functions synchronously, inside the kernel's running event loop, so
a cell with ``await`` could not run under it; this one is a coroutine.
"""

from __future__ import annotations

import pickle
from typing import Any

from ipyparallel.serialize import serialize_object

from jaxnb.engine.requests import Responder

METADATA_KEY = "jaxnb"


def install(kernel: Any = None) -> None:
    """Makes this process's kernel answer jaxnb's requests; other requests stay as they are."""
    if kernel is None:
        from ipykernel.kernelapp import IPKernelApp

        kernel = IPKernelApp.instance().kernel
    inherited = kernel.shell_handlers["apply_request"]
    if getattr(inherited, "is_jaxnb", False):
        return
    responder = Responder(kernel)

    async def apply_request(stream: Any, ident: Any, parent: Any) -> None:
        if not parent.get("metadata", {}).get(METADATA_KEY):
            inherited(stream, ident, parent)
            return
        # The message's signature was checked against the cluster's key when it was received;
        # only who holds the connection file can have sent it.
        request = pickle.loads(parent["buffers"][0])
        reply = await responder.answer(request)
        _send_reply(kernel, stream, ident, parent, reply)

    apply_request.is_jaxnb = True  # type: ignore[attr-defined]
    kernel.shell_handlers["apply_request"] = apply_request


def _send_reply(kernel: Any, stream: Any, ident: Any, parent: Any, reply: Any) -> None:
    metadata = kernel.init_metadata(parent)
    metadata["status"] = "ok"
    kernel.session.send(
        stream,
        "apply_reply",
        {"status": "ok"},
        parent=parent,
        ident=ident,
        buffers=serialize_object(pickle.dumps(reply, protocol=5)),
        metadata=metadata,
    )
