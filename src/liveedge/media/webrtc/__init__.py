"""Real-time publishing: one aiortc receiver behind WHIP and LiveKit signalling."""
