"""The certificate of verify/exact.py, computed line by line, to show progress."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from augury.kernels import verify
from augury.tools.certify.report import FAILS, HOLDS, SuiteProgress, Unwatched
from augury.verify import exact
from augury.verify.exact_worlds import THIRDS, chain

ARITHMETIC = (
    "Every draft, every outcome of its tests and every last token, in rational numbers (fractions.Fraction): the "
    "largest total variation between the joint law of the whole text and the target's is {variation}. The engine's own "
    "tensor code was checked at "
    "{points:,} points of the uniforms, in float64: it took another path at {wrong}, and its laws differ by at most "
    "{error:.1g} (allowed: {allowed:g})."
)


@dataclass(frozen=True, slots=True)
class ProofCertificate:
    """All lines of the certificate, and the published figures recomputed."""

    lines: list[exact.CertificateLine]
    published: dict[str, Fraction]  # expected accepted drafts by rule: p = (1/3, 2/3), q = (2/3, 1/3), two drafts
    seconds: float

    @property
    def lossless(self) -> list[exact.CertificateLine]:
        """Lines of rules that promise the target's law."""
        return [line for line in self.lines if line.lossless]

    @property
    def lossy(self) -> list[exact.CertificateLine]:
        """Lines of rules that make no such promise."""
        return [line for line in self.lines if not line.lossless]

    @property
    def holds(self) -> bool:
        """Whether every promise is kept."""
        return bool(self.lossless) and all(line.holds for line in self.lossless)

    @property
    def exit_code(self) -> int:
        """0: it holds; 1: it does not."""
        return HOLDS if self.holds else FAILS

    @property
    def cases(self) -> int:
        """Number of cases enumerated for the lossless lines."""
        return sum(line.cases for line in self.lossless)

    @property
    def arithmetic(self) -> str:
        """What was proved, and by what arithmetic."""
        asked = [line.production for line in self.lossless if line.production is not None]
        return ARITHMETIC.format(
            variation=max((line.total_variation for line in self.lossless), default=0),
            points=sum(found.points for found in asked),
            wrong=sum(found.wrong for found in asked),
            error=max((found.error for found in asked), default=0.0),
            allowed=exact.LAW_ERROR,
        )

    def record(self) -> dict[str, Any]:
        """For --json; fractions as text."""
        return {
            "verdict": "holds" if self.holds else "does not hold",
            "exit_code": self.exit_code,
            "subject": "exact enumeration of the acceptance rules",
            "proved": self.arithmetic,
            "cases": self.cases,
            "lines": [_line_record(line) for line in self.lines],
            "published": {rule: str(length) for rule, length in self.published.items()},
            "conditions": {
                "vocabulary": "2 or 3 tokens",
                "target": "rational laws that depend on the whole prefix",
                "torch": torch.__version__,
            },
            "seconds": round(self.seconds, 2),
        }


def _line_record(line: exact.CertificateLine) -> dict[str, Any]:
    production = None if line.production is None else line.production._asdict()
    numbers = {"total_variation": line.total_variation, "accepted": line.accepted}
    exactly = {name: str(value) if isinstance(value, Fraction) else value for name, value in numbers.items()}
    return {**line._asdict(), **exactly, "production": production, "holds": line.holds}


def certify_exact(progress: SuiteProgress | None = None) -> ProofCertificate:
    """Prove every line."""
    progress, begun = progress or Unwatched(), time.perf_counter()
    walk = verify.choose("cpu").walk
    settings = exact.settings()
    progress.begin("enumerating", len(settings) + 1)
    lines: list[exact.CertificateLine] = []
    with _one_thread():
        for setting in settings:
            lines.append(exact.certify(setting, walk))
            progress.step()
        lines += exact.lossy_lines()
        progress.step()
        published = {rule: _published(rule) for rule in ("standard", "block")}
    return ProofCertificate(lines, published, time.perf_counter() - begun)


def _published(rule: str) -> Fraction:
    tried = exact.trials(exact.EXACT[rule][0], THIRDS, chain(2), "sampled")
    return exact.prove(THIRDS, 3, tried).accepted


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run torch on one thread: these tensors are too small for more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
