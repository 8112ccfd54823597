"""What touches the device, and the choice of tokens."""
