"""Models of a deployment: links, memory, admission, step times, planning and serving."""
