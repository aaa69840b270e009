"""`augury tune`: a race between methods, K and trees, here or on a server."""
