"""Compiled programs and shardings to tables. Pure: jax is not needed to read what it says."""
