"""A handful of prompts to certify with: half of them repeat themselves, so that even look-up drafters find drafts."""

from __future__ import annotations

# Sampled answers to the first ones often begin alike, which is where a law can be tested most sharply.
PROMPTS = (
    "What is the capital of France? Answer in one sentence.",
    "Count from one to twenty in words: one, two, three, four, one, two, three,",
    "Repeat this line three times: the quick brown fox jumps over the lazy dog, and the quick brown fox jumps again.",
    'Write this JSON again: {"name": "Ada", "age": 36, "city": "London", "wife": {"name": "Ada", "age": 36}}',
    "Why is the sky blue? Why is the sky red at sunset?",
    "Write a short story about a lighthouse keeper who finds a letter.",
)
