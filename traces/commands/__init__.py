"""Commands that make, check and cut traces, and the options that all commands share."""
