"""Code shared by several tools: the terminal, requests to servers, pages, prompts, files."""
