"""How many replicas and GPUs a trace needs for a target latency, by a model and by a simulation of the router."""
