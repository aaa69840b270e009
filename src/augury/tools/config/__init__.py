"""`augury config`: what a speculative_config means; and the pages of the docs that are generated from the code."""
