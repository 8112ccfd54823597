"""liveedge: a fresh window at the live edge of every camera."""
