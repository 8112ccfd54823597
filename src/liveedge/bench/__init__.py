"""Benchmarks and the soak: they look at a server from outside and import nothing of it."""
