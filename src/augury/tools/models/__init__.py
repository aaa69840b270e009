"""`augury models`: the model cache."""
