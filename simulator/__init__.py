"""Replay of traces through policies, the cost of misses, and models of deployments.

`replay`: the compiled loop, sweeps over policies and buffers, metrics, rolling curves.
`mrc`: misses at every buffer size in one pass.
`serving`: models, machines and links; memory, admission, step times; plan, serve, reproduce.
`views`: tables in a terminal, figures, the report.
`commands`: the command line of these; it holds no logic.

Imports run from `commands` to `views` to `serving` to `mrc` to `replay`, never back.
"""
