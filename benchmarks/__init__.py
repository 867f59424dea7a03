"""Benchmarks: each target of the design measured beside what people use today.

``python -m benchmarks`` runs all of them; see :mod:`benchmarks.__main__`. They need Linux
(``pidfd_open``, ``smaps_rollup``) and the same environment as the tests.
"""
