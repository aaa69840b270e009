"""Names of what we put into an ASGI scope."""

TENANT = "augury.tenant"  # whose key the request came with
BODY = "augury.body"  # what the body takes of the budget
HANG_UP = "augury.hang_up"  # ends the connection at once
