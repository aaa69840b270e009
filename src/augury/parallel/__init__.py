"""Several processes that run one model together: which rank has which part, and how they communicate."""
