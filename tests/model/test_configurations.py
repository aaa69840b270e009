"""An engine starts without torch's compiler, and transformers works as ever and knows the same models afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DEFAULT = """
import gc, sys
from augury import LLM, SamplingParams
llm = LLM("default")
assert gc.isenabled() and not gc.get_freeze_count()
[one] = llm.chat([{"role": "user", "content": "Hello"}], SamplingParams(max_tokens=1), use_tqdm=False)
assert one.outputs[0].token_ids and "torch._meta_registrations" in sys.modules
print([name for name in ("transformers", "torch._dynamo") if name in sys.modules])
"""
LEAN = """
import sys
from augury.kernels.lean_torch import import_lean
import_lean()
import torch
lean = "torch._meta_registrations" not in sys.modules
assert lean == (torch.version.cuda is None and torch.version.hip is None)
import torch._decomp  # who needs the kernels imports this, or transformers
assert "torch._meta_registrations" in sys.modules
empty = torch.empty(2, 3, device="meta")
known = torch._C._dispatch_has_kernel_for_dispatch_key("aten::nonzero", "Meta")
print(torch.nn.functional.softmax(empty, 1).shape == (2, 3), known)
"""
START = """
import sys
from augury import LLM, SamplingParams
llm = LLM(sys.argv[1], device="cpu")
[plain] = llm.generate("abc", SamplingParams(temperature=0, max_tokens=6), use_tqdm=False)
heavy = [name for name in ("torch._dynamo", "torch.distributed.tensor") if name in sys.modules]
assert not heavy, heavy

import transformers.models
from transformers.utils import _LazyModule
from transformers.utils.import_utils import define_import_structure
found, path = transformers.models, transformers.models.__file__
own = _LazyModule(found.__name__, path, define_import_structure(path), module_spec=found.__spec__)
for listed in ("_class_to_module", "_import_structure", "_modules", "_object_missing_backend"):
    assert getattr(found, listed) == getattr(own, listed), listed

from transformers import AutoModelForCausalLM
from transformers.utils import type_validators
import torch
type_validators.device_validator(torch.device("cpu"))  # asks for torch, and must find it again
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
ids = torch.tensor([plain.prompt_token_ids])
print(model.generate(ids, do_sample=False, max_new_tokens=6)[0, ids.shape[1]:].tolist() == plain.outputs[0].token_ids)
"""


def test_an_engine_starts_without_torchs_compiler(toy_model: Path) -> None:
    done = subprocess.run([sys.executable, "-c", START, str(toy_model)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True"


def test_the_embedded_model_starts_without_transformers() -> None:
    done = subprocess.run([sys.executable, "-c", DEFAULT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_torch_is_whole_again_for_those_who_need_it() -> None:
    done = subprocess.run([sys.executable, "-c", LEAN], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True True"
