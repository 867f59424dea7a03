"""Binding a message's buffers to its signature.

Jupyter's messages are signed with the cluster's key, but the signature covers header, parent
header, metadata and content only. What is unpickled is in the buffers, so their digest goes
into the metadata.
"""

from __future__ import annotations

import hashlib
from typing import Any

METADATA_KEY = "jaxnb"
"""Marks a request or reply as jaxnb's; its value is :func:`digest` of the buffers."""

HAS_END_KEY = "jaxnb_has_end"
"""Marks a request as one whose output's end is waited for, beside the reply."""


def digest(*buffers: Any) -> str:
    """Returns a digest of buffers, for the metadata of the message that carries them."""
    total = hashlib.blake2b(digest_size=32)
    for buffer in buffers:
        view = memoryview(buffer)
        # The sizes too: else bytes could move from one buffer to the next.
        total.update(view.nbytes.to_bytes(8, "little"))
        total.update(view)
    return total.hexdigest()
