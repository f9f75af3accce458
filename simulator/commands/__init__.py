"""Commands of the simulator and their options; no logic."""
