"""`augury train`: drafters for a target, from prompts."""
