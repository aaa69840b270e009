"""`augury config`: what a speculative_config means; and the pages of the docs that are read off the code."""
