"""Engines over one set of random weights: the target is made once, however many drafters are measured with it."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from augury.config.errors import ConfigError
from augury.tools.bench.gpu.shapes import Config, Drafter

if TYPE_CHECKING:
    from augury.config.engine import EngineConfig
    from augury.engine.engine import Engine
    from augury.engine.request import Request
    from augury.model.target import Target

SLACK = 64  # tokens besides prompt and answer, for drafts at the end
STEP = 256  # lengths are multiples of this


@dataclass(frozen=True, slots=True)
class Sizes:
    """The lengths and the largest batch of the runs."""

    prompt: int
    new: int
    most: int  # requests at once

    @property
    def length(self) -> int:
        """The longest sequence with its slack, rounded up to a multiple of STEP."""
        return -(-(self.prompt + self.new + SLACK) // STEP) * STEP


class Rig:
    """An engine, and the requests it is given."""

    def __init__(self, engine: Engine, intake: Any, drafter: Drafter) -> None:
        self.engine, self.drafter = engine, drafter
        self._intake = intake

    def load(self, batch: int, prompt: int, new: int, seed: int = 0) -> list[Request]:
        """Queue a batch of random prompts, greedy, whose answers have exactly `new` tokens."""
        import torch

        from augury.config.sampling import SamplingParams

        vocab, random = self.engine.target.vocab_size, torch.Generator().manual_seed(seed)
        params = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True, detokenize=False)
        requests = []
        for tokens in torch.randint(0, vocab, (batch, prompt), generator=random).tolist():
            requests += self._intake.requests("bench", tokens, params)
        for request in requests:
            self.engine.add(request)
        return requests

    def drop(self, requests: list[Request]) -> None:
        """Abort the requests that have not finished."""
        for request in requests:
            self.engine.abort(request)

    def wait(self) -> None:
        """Wait until the device has nothing left to do."""
        import torch

        if self.engine.target.device.type == "cuda":
            torch.cuda.synchronize()

    def close(self) -> None:
        """Release the engine; its parts refer to each other, so a garbage collection must follow."""
        del self.engine, self._intake


class Bench:
    """A target's weights, and the configuration of an engine around it for each drafter."""

    def __init__(self, home: Path, target: Target, configs: dict[str, EngineConfig], sizes: Sizes) -> None:
        self.target, self.sizes = target, sizes
        self._home, self._configs = home, configs

    @contextmanager
    def rig(self, drafter: Drafter) -> Iterator[Rig]:
        """An engine with a drafter inside the block; its memory is freed afterwards."""
        import torch

        from augury.engine.build import build_engine
        from augury.engine.intake import Intake
        from augury.model.tokenizer import NoTokenizer

        config = self._configs[drafter.name]
        engine = build_engine(config, self._home, self.target)
        if self.target.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        rig = Rig(engine, Intake(config, engine, NoTokenizer(self._home)), drafter)
        del engine
        try:
            yield rig
        finally:
            rig.close()
            gc.collect()
            if self.target.device.type == "cuda":
                torch.cuda.empty_cache()


@contextmanager
def bench_of(
    shape: Config,
    drafters: Sequence[Drafter],
    sizes: Sizes,
    device: str,
    eager: bool,
    batched: int | None = None,
    exact: bool = False,
    quantization: str | None = None,
    kv_cache_dtype: str = "auto",
) -> Iterator[Bench]:
    """Make a target for some drafters; on disk it is only a temporary config.json."""
    import torch

    from augury.model.load import load_target

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    check_device(device)
    dtype = "bfloat16" if device == "cuda" else "float32"
    with TemporaryDirectory(prefix="augury-bench-") as name:
        home = _write(Path(name) / "target", shape)
        arguments = {
            "model": home,
            "device": device,
            "dtype": dtype,
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "max_model_len": sizes.length,
            "max_num_seqs": sizes.most,
            "max_num_batched_tokens": batched,
            "enable_prefix_caching": False,
            "enforce_eager": eager,
            "exact": exact,
            "quantization": quantization,
            "kv_cache_dtype": kv_cache_dtype,
        }
        configs = {drafter.name: _engine_config(Path(name), arguments, drafter) for drafter in drafters}
        target = load_target(home, dtype, device, sizes.length, dummy=True, exact=exact, quantization=quantization)
        yield Bench(Path(home), target, configs, sizes)


def _engine_config(directory: Path, arguments: dict[str, Any], drafter: Drafter) -> EngineConfig:
    """The checked configuration of an engine with a drafter, made before the target, which takes a while."""
    from augury.config.engine import EngineConfig
    from augury.config.facts import read_facts

    config = EngineConfig.parse(**arguments, speculative_config=_speculation(directory, drafter))
    config.check_speculation(read_facts(arguments["model"]))
    return config


def _speculation(directory: Path, drafter: Drafter) -> Config | None:
    if not drafter.speculates:
        return None
    if drafter.config is None:
        return drafter.keys
    return {**drafter.keys, "model": _write(directory / drafter.name.replace(":", "-"), drafter.config)}


def check_device(device: str) -> None:
    """Refuse a GPU that is not there."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch sees no GPU; use auto or cpu.")


def _write(directory: Path, config: Config) -> str:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(directory)
