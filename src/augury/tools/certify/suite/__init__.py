"""`augury certify --suite`: what a speculating server promises, one cell a promise; many cells make a table."""
