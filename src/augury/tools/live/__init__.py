"""Live servers, read through their metrics and judged; `check`, `watch` and `diagnose` are the commands."""
