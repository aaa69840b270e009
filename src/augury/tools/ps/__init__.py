"""`augury ps`: the servers on this machine."""
