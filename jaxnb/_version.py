"""The version, alone in a module that imports nothing, for the build to read."""

__version__ = "0.1.0"
