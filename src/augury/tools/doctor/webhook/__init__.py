"""`augury doctor serve`: the doctor as a validating admission webhook of Kubernetes."""
