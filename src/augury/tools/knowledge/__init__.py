"""`augury knowledge`: what is known of speculation in vLLM, as data."""
