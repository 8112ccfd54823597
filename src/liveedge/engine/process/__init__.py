"""The two halves of the engine and what lies between them."""
