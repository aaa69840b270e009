"""`augury check`, `watch` and `diagnose`: live servers through their metrics."""
