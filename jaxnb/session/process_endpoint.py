"""The process's end of the transport: jaxnb's requests beside ipyparallel's own.

A request travels as an ipyparallel ``apply_request`` whose metadata say that it is jaxnb's.
ipyparallel's handler runs functions synchronously, inside the kernel's running event loop, so
a cell with ``await`` could not run under it; this one is a coroutine.
"""

from __future__ import annotations

import logging
from typing import Any

from jaxnb.cells import process_children
from jaxnb.compat import ipykernel_requests
from jaxnb.lockstep import process_interrupts
from jaxnb.model.cells import CallRequest, CellRequest, JointRequest
from jaxnb.session.process_requests import Responder, failure
from jaxnb.wire import messages
from jaxnb.wire.messages import HAS_END_KEY, METADATA_KEY, digest, dump, load

_KIND = "apply_request"


def install(kernel: Any = None) -> None:
    """Makes this process's kernel answer jaxnb's requests, and refuse ipyparallel's own.

    ipyparallel's ``apply`` unpickles buffers, which its signature does not cover: whoever can put
    other buffers to a signed message could run code here.
    """
    kernel = ipykernel_requests.this_kernel() if kernel is None else kernel
    if getattr(ipykernel_requests.answers_with(kernel, _KIND), "is_jaxnb", False):
        return
    responder = Responder(kernel)

    async def apply_request(stream: Any, ident: Any, parent: Any) -> None:
        if not is_ours(parent):
            _refuse(kernel, stream, ident, parent)
            return
        reply = await _answer(responder, parent)
        try:
            frames = dump(reply)
        except Exception as error:  # whoever waits must not wait for ever
            frames = dump(failure(error))
        _send_reply(kernel, stream, ident, parent, frames)

    apply_request.is_jaxnb = True  # type: ignore[attr-defined]
    ipykernel_requests.answer_with(kernel, _KIND, apply_request)
    process_interrupts.install()
    process_children.install()
    messages.install(kernel)
    ipykernel_requests.leave_signals_alone(kernel, is_ours)
    ipykernel_requests.say_less(kernel, _is_waited_for)
    kernel.log.setLevel(logging.ERROR)  # all that its handler shows; four are made in each cell


def is_ours(message: Any) -> bool:
    """Whether a message is a request of jaxnb's."""
    return bool(message) and METADATA_KEY in message.get("metadata", {})


def _is_waited_for(status: str, parent: Any) -> bool:
    """Whether somebody waits to hear that the kernel is busy or idle with a message."""
    return not is_ours(parent) or (status == "idle" and HAS_END_KEY in parent["metadata"])


async def _answer(responder: Responder, parent: Any) -> Any:
    """Answers a request; SIGINT interrupts what is asked for, and nothing else."""
    reply: Any = None
    try:
        try:
            request = _read(parent)
            if _is_interruptible(request):
                process_interrupts.allow()
            reply = await responder.answer(request)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            reply = failure(error)
        process_interrupts.ignore()
    except KeyboardInterrupt as error:  # it struck on the way out
        process_interrupts.ignore()
        reply = failure(error) if reply is None else reply
    return reply


def _is_interruptible(request: Any) -> bool:
    if isinstance(request, CallRequest):
        return request.is_interruptible
    return isinstance(request, CellRequest | JointRequest)


def _read(parent: Any) -> Any:
    frames = [getattr(buffer, "buffer", buffer) for buffer in parent["buffers"]]
    if digest(*frames) != parent["metadata"][METADATA_KEY]:
        raise ValueError("the request is not what was signed")
    return load(frames)


def _refuse(kernel: Any, stream: Any, ident: Any, parent: Any) -> None:
    why = "processes of a jaxnb group accept no functions from ipyparallel views; use `%%spmd`"
    error = {"status": "error", "ename": "PermissionError", "evalue": why, "traceback": []}
    metadata = kernel.init_metadata(parent) | {"status": "error"}
    kernel.session.send(stream, "apply_reply", error, parent=parent, ident=ident, metadata=metadata)


def _send_reply(kernel: Any, stream: Any, ident: Any, parent: Any, frames: list[Any]) -> None:
    metadata = kernel.init_metadata(parent) | {"status": "ok", METADATA_KEY: digest(*frames)}
    content = {"status": "ok"}
    kernel.session.send(
        stream,
        "apply_reply",
        content,
        parent=parent,
        ident=ident,
        buffers=frames,
        metadata=metadata,
    )
