"""Hours of everything at once against a server, and whether anything grew or broke: `liveedge soak`."""
