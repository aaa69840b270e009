"""Live servers, judged by their metrics; the commands are `check`, `watch` and `diagnose`."""
