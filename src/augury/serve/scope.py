"""Names of what we put into an ASGI scope, and of a header."""

TENANT = "augury.tenant"  # whose caches the request may use
CLIENT = "augury.client"  # whose key it came with: clients take turns, whether they share caches or not
BODY = "augury.body"  # the request's Body, which holds its part of the budget
HANG_UP = "augury.hang_up"  # a function that ends the connection at once
STALLED = "augury.stalled"  # a function: for how many seconds the client has taken nothing of a full buffer
PROBES = "x-augury-probe"  # a request sent to monitor the server; its drafts are also counted by themselves
