"""Inference and generate: a complete message becomes a checked request of the kernel, its response the bytes of an answer."""
