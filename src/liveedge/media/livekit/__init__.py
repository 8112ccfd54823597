"""The LiveKit protocol: what its SDKs say to a server, without a network."""
