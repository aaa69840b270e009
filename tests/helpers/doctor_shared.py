"""Commands and values that several of the doctor's pairs begin with."""

from __future__ import annotations

from doctor_cases import DEEPSEEK, LLAMA, spec

VLLM = f"vllm serve {LLAMA}"
V3 = f"vllm serve {DEEPSEEK}"
MTP = spec("mtp", 1)
DFLASH = spec("dflash", 15, model="org/block-drafter")
TABLE = [[1, 16, 3], [17, 256, 0]]
