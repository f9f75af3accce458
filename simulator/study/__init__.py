"""How far policies and prefetchers are from what is least, on which traces, and how surely.

`reuse`: what optima are computed from.  `least`, `barrier`: the bounds.
"""
