"""Errors of models."""


class ModelError(ValueError):
    """A model that cannot be found, read or run: one line that says what is wrong and how to fix it."""


def one_line(error: Exception) -> str:
    """A library's error message on one line, cut to 300 characters."""
    said = " ".join(str(error).split()) or type(error).__name__
    return said if len(said) <= 300 else f"{said[:297]}..."
