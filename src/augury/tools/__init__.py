"""The tools: one a folder, each with its commands; `shared` is for what several of them use."""
