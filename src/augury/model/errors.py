"""What goes wrong with models."""


class ModelError(ValueError):
    """A model that cannot be found, read or run: one line that says what and how to mend it."""
