"""`augury bench`: this engine beside its peers, method by method, and alone on a GPU."""
