"""Advice before deployment: what a step costs, what a method would accept, and whether the one pays for the other."""
