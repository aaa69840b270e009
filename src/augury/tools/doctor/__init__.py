"""`augury doctor`: what is wrong with a command, wherever it is written."""
