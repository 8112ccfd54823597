"""Frames of a stream: the newest, the recent, the last ten minutes, and references to them."""
