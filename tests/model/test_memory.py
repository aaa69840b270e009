"""What loading needed is given back, and what is still needed comes back."""

from __future__ import annotations

import sys

import pytest
import torch

from augury.model import memory

MAPS = """\
ffff80000000-ffff80010000 r-xp 00000000 08:01 12 /a b/llvmlite/binding/libllvmlite.so
ffff80010000-ffff80020000 rw-p 00010000 08:01 12 /a b/llvmlite/binding/libllvmlite.so
ffff80020000-ffff80030000 r--p 00010000 08:01 13 /opt/torch/lib/libtorch_cpu.so
ffff80030000-ffff80040000 r-xp 00010000 08:01 13 /opt/torch/lib/libtorch_cpu.so
ffff80040000-ffff80050000 r-xp 00010000 08:01 14 /usr/lib/libc.so.6
ffff80050000-ffff80060000 rwxp 00000000 00:00 0
"""


def test_only_unwritten_code_of_known_libraries_is_let_go() -> None:
    assert list(memory._code(MAPS)) == [(0xFFFF80000000, 0xFFFF80010000), (0xFFFF80030000, 0xFFFF80040000)]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc/self/maps is Linux's")
def test_code_that_was_let_go_still_runs() -> None:
    x = torch.linspace(-1, 1, 4096).view(64, 64)
    before = torch.linalg.svdvals(x @ x.T).sum(), torch.softmax(x, 1)
    memory.let_go()
    after = torch.linalg.svdvals(x @ x.T).sum(), torch.softmax(x, 1)
    assert torch.equal(before[0], after[0]) and torch.equal(before[1], after[1])
