"""A stand-in for SGLang, on the CPU, with the names that the plugin wraps."""
