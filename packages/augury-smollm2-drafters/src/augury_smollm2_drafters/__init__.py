"""Drafters for SmolLM2-135M-Instruct; drafters.json says which, and for which target."""

from pathlib import Path

DIRECTORY = Path(__file__).parent
