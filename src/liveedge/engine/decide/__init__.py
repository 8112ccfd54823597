"""What the engine does next: pure decisions, without torch and without a clock."""
