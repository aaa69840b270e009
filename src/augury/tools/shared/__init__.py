"""What several tools use: the terminal, requests to servers, pages, prompts, files."""
