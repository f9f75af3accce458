"""On the GPU: the CUDA swap-in kernels, replay of traces, calibration.

`kernels`: the engine's kernel and our own, built on first use.
`harness`: memory, streams and timing around a kernel; a trace replayed through it, slot by slot.
`bench`: latency measured over grids and on several GPUs; link profiles made from it.
`commands`: the command line of these.

torch, nvcc and a GPU are needed when a function uses them, never at import.
"""
