"""`python -m augury.tools.bench.lookup`: n-gram and suffix look-ups against a rescan and against Arctic's cache."""
