"""The locality of a trace: overlap, reuse, working set and drift."""
