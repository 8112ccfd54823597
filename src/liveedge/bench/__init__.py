"""The live benchmark and the soak: any OpenAI-compatible server, measured from outside."""
