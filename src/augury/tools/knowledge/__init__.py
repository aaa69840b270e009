"""`augury knowledge`: what is known about speculation in vLLM, as data."""
