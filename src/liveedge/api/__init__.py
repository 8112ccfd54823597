"""HTTP: parse, call one service, encode."""
