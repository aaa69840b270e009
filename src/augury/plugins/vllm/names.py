"""What the plugin is called where others meet it: nothing here needs vLLM."""

from __future__ import annotations

CLASSES = "augury.plugins.vllm."  # prefix of classes that a vLLM command names, where the plugin is installed
METRICS = (
    "augury:spec_decode_num_draft_tokens_per_pos",
    "augury:spec_decode_num_rejected_tokens",
    "augury:acceptance_length",
    "augury:rejected_share_of_drafts",
    "augury:speedup_estimate",  # as our own server calls its own: rules, dashboard and `check` read both
)
