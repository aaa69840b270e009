"""What quantised weights cost: `python quantized_quality.py MODEL TEXT [DEVICE] [TOKENS]`.

Perplexity of a text of so many tokens, read in windows, with plain weights and rounded ones, and how far the logits are
apart: the mean divergence (KL, nats) from the plain model's, and how often the likeliest token is the same.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from augury.engine.scoring import scored_rows
