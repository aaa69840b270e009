"""`augury bench gpu`: the engine alone, on random weights, with a given acceptance."""
