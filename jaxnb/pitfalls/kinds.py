"""The kinds of pitfalls. Each has a page in the documentation, ``docs/pitfalls/KIND.md``."""

from __future__ import annotations

PITFALL_KINDS = (
    "jit-of-pmap",
    "device-put",
    "fetch",
    "constant",
    "replicated",
    "recompiled",
    "device-order",
    "explicit-axes",
    "settings",
    "unchecked",  # jaxnb could not look for another kind
)
