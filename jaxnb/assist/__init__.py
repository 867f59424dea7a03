"""Help while typing: names and documentation from a process, and what to type instead."""
