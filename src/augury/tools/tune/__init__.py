"""`augury tune`: a race between methods, K and trees, on this machine or on a server."""
