"""`augury suffix`: suffix caches made ahead of the first request."""
