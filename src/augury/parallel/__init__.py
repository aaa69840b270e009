"""Several processes that run one model between them: who has which part, and how they talk."""
