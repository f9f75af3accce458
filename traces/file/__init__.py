"""The trace file: its columns, metadata and rules, read, checked, cut, described and written."""
