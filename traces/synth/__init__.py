"""Synthetic traces: fitted to published figures, or of a given shape."""
