"""Commands that need an NVIDIA GPU; no logic."""
