"""The exercises, by topic: each module has ``EXERCISES``."""
