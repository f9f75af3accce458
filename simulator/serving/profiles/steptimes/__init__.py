"""Step-time tables made by benchmarks/make_step_times.py: MODEL_HARDWARE_LAYOUT_KV.json."""
