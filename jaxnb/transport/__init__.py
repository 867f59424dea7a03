"""Cells out, streams back: between the notebook and the processes, over ipyparallel."""
