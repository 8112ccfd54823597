"""The memory plan: every pool, its size and its reason."""
