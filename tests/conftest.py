"""Fixtures: a toy model that needs no download, and the embedded one."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    import openai
    from served import Served, Shared

    from augury import LLM

gc.disable()  # until all files are imported: see pytest_collection_finish
# Hundreds of children start here; without bytecode each would compile augury anew, 0.2 to 1 s of its processor time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing in the tests may reach for a hub
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as augury sets it, which test files import after torch: too late
if not Path("/dev/nvidia0").exists():  # Triton reads this once: without a GPU its interpreter runs the kernels
    os.environ.setdefault("TRITON_INTERPRET", "1")
if "PYTEST_XDIST_WORKER" in os.environ:  # a process a core already: their threads would only wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")

LONGEST = (  # half a minute or more on one core, by `make test-cost` or by the clock, the longest first
    "test_embedded", "test_bench_methods", "test_training", "test_laws", "test_hybrid_engine", "test_certify_model",
    "test_mtp_layers", "test_siege", "test_eagle", "test_parsers_any_split", "test_tensor_parallel", "test_hybrid_fuzz",
    "test_bench", "test_cli", "test_hybrid_mtp", "test_monitor_promtool", "test_page", "test_serve_schema",
    "test_hybrid_targets", "test_digits", "test_dflash2_engine", "test_packed", "test_train", "test_pipeline",
    "test_mutations", "test_followed_pages", "test_draft_model", "test_guilty_requests", "test_certify_urls",
    "test_lost_ranks", "test_serve_faults", "test_page_views", "test_serve_attacks", "test_structured",
    "test_bench_serve", "test_live_servers", "test_triton_engine", "test_bench_serve_requests", "test_serve_life",
    "test_triton_draw", "test_tune", "test_hostile_commands", "test_hostile_traces", "test_ray_serve",
    "test_serve_ranks",
)  # fmt: skip
# No test depends on how fast the machine is.
settings.register_profile("augury", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("augury")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_tokenizer() -> object:
    """A tokenizer whose tokens are bytes, and <eos>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>")
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def save_toy(directory: Path, layers: int = 2) -> Path:
    """A random Llama over bytes; sharp logits, so that its greedy text does not hang on near-ties."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=260,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.3,
        eos_token_id=256,
        bos_token_id=None,
    )
    torch.manual_seed(7)
    LlamaForCausalLM(config).save_pretrained(directory)
    byte_tokenizer().save_pretrained(directory)  # type: ignore[attr-defined]
    return directory


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, then others with slow tests: begun last, one would keep one worker while others wait.

    xdist keeps this order only under --no-loadscope-reorder; by itself it begins with the files of most tests.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (place.get(item.path.stem, len(place)), item.path not in slow))


def pytest_collection_finish() -> None:
    """What imports have made stays until the end: walking it again and again took 6 % of the tests' time."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Back to OMP_NUM_THREADS: what a test asked for must not stay for the next, where it would only be waited for.

    Threads that spin are the worst of it: beside another worker, a toy's gate trains in 55 seconds instead of 2.
    """
    if "OMP_NUM_THREADS" not in os.environ or "torch" not in sys.modules:
        return
    import numba
    import torch

    from augury.kernels.threads import share_pool

    threads = int(os.environ["OMP_NUM_THREADS"])
    share_pool()  # numba's pool starts with all cores, and takes torch's with it: better now than within a test
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    torch.set_num_threads(threads)


@contextmanager
def _single() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For tensors too small to share out; set for every test, since a parallel numba call sets it too."""
    with _single():
        yield


@pytest.fixture(scope="module")
def one_thread_throughout() -> Iterator[None]:
    """For a module on the toy, its fixtures included: waking a second thread takes long on a busy machine."""
    with _single():
        yield


@pytest.fixture(scope="session")
def toy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy of two layers that needs no download."""
    return save_toy(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The embedded model, converted; downloads 93 MB the first time."""
    from augury.model.store import resolve

    return resolve("default", quiet=True)


# --- the toy, served under strict limits, its client, and the same engine offline -----------------------------------


@pytest.fixture(scope="session")
def shared(toy_model: Path) -> Iterator[Shared]:
    """The server that files share which leave it as they found it."""
    from served import STRICT, Shared

    with Shared(toy_model, *STRICT) as kept:
        yield kept


@pytest.fixture(scope="module")
def server(shared: Shared) -> Iterator[Served]:
    """The shared server, which a file may put one of its own in the place of."""
    with shared.lent() as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Served) -> openai.OpenAI:
    """The real client."""
    import openai

    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def llm(toy_model: Path) -> LLM:
    """What the server must agree with."""
    from served import NGRAM

    from augury import LLM

    return LLM(toy_model, device="cpu", speculative_config=NGRAM)
