"""`input()` and debuggers in cells: processes ask, and the notebook's user answers."""
