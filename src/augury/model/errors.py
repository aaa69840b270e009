"""Errors of models."""


class ModelError(ValueError):
    """A model that cannot be found, read or run: one line that says what is wrong and how to fix it."""
