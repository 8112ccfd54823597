"""The demonstration: a server, a simulated camera, questions with known answers."""
