"""Beyond one process: replicas of the server behind one router, on Ray Serve."""
