"""What runs inside a process of the group. The only package that imports jax."""
