"""`augury bench serve`: put load on a running OpenAI-compatible server."""
