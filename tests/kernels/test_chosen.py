"""What the CPU kernels say that they chose is what they are compiled to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import njit

from augury.kernels import machine
from augury.kernels.chosen import choices_in_words, machine_in_words
from augury.kernels.digits_numba import EXACT, FAST
from augury.kernels.simd_digits import FACTORS, tile1
from augury.kernels.tiles import TILE, record_bytes
from augury.kernels.unpack import BLOCK

INSTRUCTIONS = ("vpdpbusd", "sdot", "vpmaddubsw")


@pytest.mark.parametrize(("digits", "words"), [(EXACT, "packed_exact"), (FAST, "packed_fast")])
def test_the_instruction_named_is_in_the_code(digits: tuple[int, ...], words: str) -> None:
    @njit
    def product(tiles, numbers, factors, digits, out):  # type: ignore[no-untyped-def]
        tile1(tiles, 0, 0, numbers, factors, 0, 1, digits, out, 0, 1)

    record, numbers = np.zeros(record_bytes(halved=True), np.uint8), np.zeros(BLOCK * len(digits), np.int8)
    product(record, numbers, np.zeros(FACTORS, np.float32), digits, np.zeros(TILE, np.float32))
    (code,) = product.inspect_asm().values()
    told = choices_in_words()[words]
    if words == "packed_fast" or machine.DOT_PRODUCTS:  # elsewhere exact does not come this way
        assert [name for name in INSTRUCTIONS if name in code] == [name for name in INSTRUCTIONS if name in told]


def test_threads_and_code_are_those_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from augury.kernels import digits_numba
    from augury.kernels.threads import share_pool

    told = choices_in_words()
    assert told["threads"].startswith(f"{share_pool()} on {os.cpu_count()} processors")
    numba_keeps = digits_numba.linear_digits._cache.cache_path
    assert Path(numba_keeps).is_relative_to(told["compiled_code"])
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert choices_in_words()["compiled_code"] == str(tmp_path)
    monkeypatch.setattr("augury.kernels.faces.asked", lambda: "torch")
    assert choices_in_words()["kernels"] == "torch, set by AUGURY_KERNELS" and "packed_exact" not in choices_in_words()


ASK = """
import json
from augury.kernels.chosen import choices_in_words, machine_in_words
print(json.dumps(machine_in_words() | choices_in_words()))
"""
X86 = {  # extensions by LLVM's names, and what follows from them
    "": ("128 bits (SSE2)", "none", "float32, unpacked in the cache", "four rows at a time"),
    "+avx,+avx2,+fma": ("256 bits (AVX2)", "pairs (vpmaddubsw)", "float32, unpacked in the cache", "four rows"),
    "+avx,+avx2,+fma,+avxvnni": ("256 bits (AVX2)", "vpdpbusd (AVX-VNNI)", "three bytes per activation", "four rows"),
    "+avx,+avx2,+fma,+avx512f,+avx512bw,+avx512vnni,+amx-bf16": (
        "512 bits (AVX-512)",
        "vpdpbusd (AVX-512 VNNI)",
        "three bytes per activation",
        "keys across lanes",
    ),
}


@pytest.mark.skipif(machine.ARM, reason="told to be another x86 processor")
@pytest.mark.parametrize("features", X86)
def test_other_machines_say_what_they_have(features: str, tmp_path: Path) -> None:
    told = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(tmp_path)}
    told["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=os.environ | told, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found, (vectors, products, exact, attention) = json.loads(done.stdout), X86[features]
    assert (found["vectors"], found["byte_products"]) == (vectors, products)
    assert exact in found["packed_exact"] and attention in found["attention"]
    amx = "amx-bf16" in features
    assert found["bfloat16_products"] == ("yes (AMX)" if amx else "none")
    assert found["bfloat16_weights"].startswith("the vendor's library" if amx else "our own")
    assert found["packed_tiles"] == f"{int(vectors.split()[0]) // 16} lines"


def test_every_fact_has_a_label() -> None:
    from augury.tools.bench.profile_screen import LABELS

    assert set(LABELS) == {"kernels", *machine_in_words(), *choices_in_words()}
