"""Starting processes: the fork server, its ipyparallel launchers, and who gets which device."""
