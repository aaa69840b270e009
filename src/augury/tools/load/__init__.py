"""`augury bench serve`: a running OpenAI server under load."""
