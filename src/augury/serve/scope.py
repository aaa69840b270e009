"""Names of what we put into an ASGI scope, and of a header."""

TENANT = "augury.tenant"  # whose caches the request may use
CLIENT = "augury.client"  # whose key it came with: clients take turns, whether they share caches or not
BODY = "augury.body"  # what the body takes of the budget
HANG_UP = "augury.hang_up"  # ends the connection at once
STALLED = "augury.stalled"  # for how many seconds its client has taken nothing of a full buffer
PROBES = "x-augury-probe"  # a request sent to see how the server does; its drafts are counted by themselves, too
