"""The cameras of a run: who publishes, what a request refers to or carries, and what is true of it."""
