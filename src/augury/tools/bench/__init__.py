"""`augury bench`: this engine against its peers, method by method, and alone on a GPU."""
