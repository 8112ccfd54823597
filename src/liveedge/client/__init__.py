"""A client of the server: HTTP only, imports nothing of the server's own parts."""
