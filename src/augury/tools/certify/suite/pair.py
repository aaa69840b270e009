"""The two servers of a suite, how much they are asked, and the tally of answers that must be the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from augury.tools.certify.report import Difference
from augury.tools.certify.suite.ask import Peer, Said
from augury.tools.certify.suite.cells import Broken, NotCertified
from augury.tools.certify.suite.prompts import PROMPTS
from augury.tools.certify.ties import TOLERANCE, parted

CROWDS = 4  # times as many requests as usual, to make a server run out of memory for them
SHOWN = 300  # characters of an answer in the evidence


@dataclass(frozen=True, slots=True)
class SuitePlan:
    """How much is asked of the servers."""

    prompts: Sequence[str] = PROMPTS
    max_tokens: int = 64
    in_flight: int = 8
    long_words: int = 1000
    tolerance: float = TOLERANCE
    logprobs: bool = True

    def record(self) -> dict[str, Any]:
        """The conditions that a cell depends on."""
        told = ("max_tokens", "in_flight", "long_words", "tolerance", "logprobs")
        return {"prompts": len(self.prompts), **{name: getattr(self, name) for name in told}}


@dataclass(frozen=True, slots=True)
class Pair:
    """The server to be certified, and the one of the same model that does not speculate, if there is one."""

    fast: Peer
    plain: Peer | None
    plan: SuitePlan

    def baseline(self) -> Peer:
        """The plain server, for a suite that needs one; raises NotCertified if there is none."""
        if self.plain is None:
            raise NotCertified("there is no plain server to compare with; name one with --baseline-url")
        return self.plain

    def tally(self) -> PairTally:
        """An empty tally."""
        return PairTally(self.plan.tolerance)


@dataclass(slots=True)
class PairTally:
    """Answers that must be the same, up to near-ties."""

    tolerance: float
    answers: int = 0
    tokens: int = 0
    near_ties: int = 0
    wrong: list[tuple[str, str, Difference | None, Said, Said]] = field(default_factory=list)

    def same(self, what: str, prompt: str, expected: Said, got: Said) -> None:
        """Compare one answer with the one it must equal."""
        self.answers += 1
        self.tokens += len(got.answer.tokens)
        if (expected.text, expected.finish) == (got.text, got.finish):
            return
        ours, theirs = expected.answer, got.answer
        if (ours.likely is None) != (theirs.likely is None):
            ours, theirs = ours.joined(), theirs.joined()
        found = parted(ours, theirs, self.tolerance, what)
        if found is not None and found.near_tie:
            self.near_ties += 1
        else:
            self.wrong.append((what, prompt, found, expected, got))

    def figures(self) -> dict[str, Any]:
        """The counts, if every answer was the same; otherwise raises Broken, for a red cell."""
        counts = {"answers": self.answers, "tokens": self.tokens, "near_ties": self.near_ties}
        if not self.wrong:
            return counts
        what, prompt, found, expected, got = self.wrong[0]
        many = f"{len(self.wrong)} of {self.answers} answers differ"
        raise Broken(
            f"{what}: {many}, {_where(found, expected, got)}",
            **counts,
            differing=len(self.wrong),
            prompt=prompt[-SHOWN:],
            expected=expected.text[:SHOWN],
            got=got.text[:SHOWN],
            finish=[expected.finish, got.finish],
            difference=found.record() if found else None,
        )


def _where(found: Difference | None, expected: Said, got: Said) -> str:
    """Where two answers differ, in words; the first token can be named only if both servers list tokens."""
    if not (expected.answer.likely and got.answer.likely):
        return "unexplained: no tokens are listed"
    if found is not None:
        return f"first at token {found.position + 1}"
    if expected.finish != got.finish:
        return f"with the same tokens, but finish_reason {got.finish!r} instead of {expected.finish!r}"
    return "with the same tokens, but different text"
