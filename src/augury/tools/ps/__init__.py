"""`augury ps`: the servers of this machine."""
