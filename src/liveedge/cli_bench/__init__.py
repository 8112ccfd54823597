"""`liveedge bench` and `liveedge soak`: measure a server from outside."""
