"""Lockstep: before processes dispatch a computation together, all agree that it is the same one.

``messages`` has what crosses between a process and the conductor, ``conductor`` decides.
"""
