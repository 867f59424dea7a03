"""The command line: ``jaxnb run``, ``jaxnb doctor``, ``jaxnb clean``."""
