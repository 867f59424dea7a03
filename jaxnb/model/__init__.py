"""What crosses between processes, and what a session hands to its user.

All are frozen dataclasses of plain data. Nothing here imports jax, IPython or ipyparallel,
so a notebook can hold every one of them without any of those.

Times are in seconds; sizes end in ``_bytes``; indices are half-open ``(start, stop)``.
"""
