"""`augury suffix`: suffix caches built before the first request."""
