"""Damaged and hostile input for every reader: see `runner`."""
