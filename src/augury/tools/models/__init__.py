"""`augury models`: the cache of models."""
