"""Models of other servers: OpenAI-compatible, asked with our frames as pictures."""
