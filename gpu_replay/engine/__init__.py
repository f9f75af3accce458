"""Inside a running SGLang server: counters, traces and our kernel, without a change to its files.

`releases`: what the plugin relies on in every known release, compared before the server starts.
`plugin`: the entry point that SGLang loads in each of its processes; does nothing unless
`engine run` has set its environment variable.
`watching`: one coordinator watched; `counters` and `device_ring` are what it keeps on the device,
`reading` copies that out, `host_ring` is where a recording waits in pinned memory.
`recording` makes trace files of it, in the process of `engine run`; `launching` is that process.
`checking` replays what was recorded and compares it with what was counted.

torch is needed inside the server only, and no NVIDIA GPU at import.
"""
