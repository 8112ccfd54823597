"""Publishing into a stream from outside: simulated cameras, files and devices, by WHIP or LiveKit."""
