"""Network and files to frames: the only package that knows av."""
