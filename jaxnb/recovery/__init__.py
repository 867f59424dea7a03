"""What becomes of a group, and of its processes' variables, when something has gone wrong."""
