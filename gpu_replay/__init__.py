"""What really happens: the CUDA swap-in kernels, replay of traces on a GPU, calibration.

torch, nvcc and a GPU are looked for when a function needs them, never at import.
"""
