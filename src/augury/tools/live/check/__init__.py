"""`augury check`: whether a live server speculates, and how well."""
