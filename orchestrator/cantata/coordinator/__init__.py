"""Starting, sweeping and forking of runs."""
