"""The styles of severities."""

STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}
