"""Measured latency: grids of points, several GPUs, calibration of link profiles."""
