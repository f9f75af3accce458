"""What really happens: the CUDA swap-in kernels, replay of traces on a GPU, calibration.

`kernels`: the engine's kernel and our own, built on first use.
`harness`: memory, streams and timing around a kernel; a trace replayed through it, slot by slot.
`bench`: latency measured over grids and several GPUs; link profiles made of it.
`commands`: the command line of these.

torch, nvcc and a GPU are looked for when a function needs them, never at import.
"""
