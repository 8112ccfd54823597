"""Fakes that keep the real promises; shipped so that users can test against them."""
