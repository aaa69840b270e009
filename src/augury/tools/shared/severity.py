"""How severities look."""

STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}
