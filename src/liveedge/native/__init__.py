"""Small C kernels, optional: with a compiler they are built once, without one torch does the work."""
