"""Augury's parts inside other people's servers."""
