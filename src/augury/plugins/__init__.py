"""The parts of Augury that run inside other servers."""
