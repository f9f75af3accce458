"""How local a trace is: overlap, reuse, working set and drift."""
