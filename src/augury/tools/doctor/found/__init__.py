"""Commands found in scripts, YAML, JSON, Dockerfiles and Python, each word with its position."""
