"""`augury replay`: recorded conversations through look-up drafters."""
