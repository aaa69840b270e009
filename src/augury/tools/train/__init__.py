"""`augury train`: train drafters for a target, from prompts."""
