"""The process's end of the transport: jaxnb's requests beside ipyparallel's own.

A request travels as an ipyparallel ``apply_request`` whose metadata say that it is jaxnb's.
ipyparallel's handler runs functions synchronously, inside the kernel's running event loop, so
a cell with ``await`` could not run under it; this one is a coroutine.
"""

from __future__ import annotations

import logging
from typing import Any

from jaxnb.cells import process_children
from jaxnb.lockstep import process_interrupts
from jaxnb.model.cells import CellRequest
from jaxnb.model.requests import CallRequest, JointRequest
from jaxnb.session.process_requests import Responder, failure
from jaxnb.wire import process_plain_text
from jaxnb.wire.frames import dump, load
from jaxnb.wire.signing import HAS_END_KEY, METADATA_KEY, digest


def install(kernel: Any = None) -> None:
    """Makes this process's kernel answer jaxnb's requests, and refuse ipyparallel's own.

    ipyparallel's ``apply`` unpickles buffers, which its signature does not cover: whoever can put
    other buffers to a signed message could run code here.
    """
    if kernel is None:
        from ipykernel.kernelapp import IPKernelApp

        kernel = IPKernelApp.instance().kernel
    if getattr(kernel.shell_handlers["apply_request"], "is_jaxnb", False):
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
    kernel.shell_handlers["apply_request"] = apply_request
    process_interrupts.install()
    process_children.install()
    process_plain_text.install(kernel)
    _leave_signals_alone(kernel)
    _say_less(kernel)
    kernel.log.setLevel(logging.ERROR)  # all that its handler shows; four are made in each cell


def is_ours(message: Any) -> bool:
    """Whether a message is a request of jaxnb's."""
    return bool(message) and METADATA_KEY in message.get("metadata", {})


def _leave_signals_alone(kernel: Any) -> None:
    """Keeps ipykernel from making SIGINT a KeyboardInterrupt around jaxnb's requests.

    It does so for as long as the handler of a message runs. One that struck before or after
    the cell itself would be caught in ipykernel's own code, and no reply would be sent.
    """
    for name in ("pre_handler_hook", "post_handler_hook"):
        original = getattr(kernel, name)

        def hook(original: Any = original) -> None:
            if not is_ours(kernel.get_parent("shell")):
                original()

        setattr(kernel, name, hook)


def _say_less(kernel: Any) -> None:
    """Keeps ipykernel from saying "busy" and "idle" at jaxnb's requests, where nobody waits for it.

    Each is made, signed, passed on and read in 0.2 ms, of the 3 to 4 that a request takes.
    """
    original = getattr(kernel, "_publish_status", None)
    if original is None:  # an ipykernel that says it otherwise
        return

    def publish_status(status: str, *rest: Any, **settings: Any) -> None:
        parent = kernel.get_parent("shell")
        if not is_ours(parent) or (status == "idle" and HAS_END_KEY in parent["metadata"]):
            original(status, *rest, **settings)

    kernel._publish_status = publish_status


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
