"""`augury certify --suite`: what a speculating server promises, one cell per promise; many cells make a table."""
