"""The harness of a kernel: memory pools, streams, timing, and the replay of a trace."""
