"""Run a model: `augury generate`, `demo`, `chat` and `serve`."""
