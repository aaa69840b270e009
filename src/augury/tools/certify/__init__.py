"""`augury certify`: that speculation changes nothing, by proof, on a model, on servers."""
