"""`augury certify`: check that speculation changes nothing, by proof, on a model, or on servers."""
