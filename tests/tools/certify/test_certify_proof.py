"""`augury certify --exact`: the certificate, and a rule that does not deserve it."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from certifying import augury, check_page
from hypothesis import settings

REPEATABLE = settings(deadline=None, derandomize=True, max_examples=80)


@pytest.fixture(scope="module")
def lossy() -> Any:
    from augury.verify import exact

    return list(exact.lossy_lines())


@pytest.fixture
def short_proof(monkeypatch: pytest.MonkeyPatch, lossy: Any) -> Any:
    """Every fourteenth line: the whole of it is what tests/verify/test_exact.py runs."""
    from augury.verify import exact

    some = exact.settings()[::14]
    monkeypatch.setattr(exact, "settings", lambda: some)
    monkeypatch.setattr(exact, "lossy_lines", lambda: lossy)
    return exact


def test_exact_certificate_on_the_command_line(short_proof: Any, tmp_path: Path) -> None:
    page = tmp_path / "proof.html"
    result = augury("--exact", "--json", "--html", str(page))
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    lossless = [line for line in record["lines"] if line["lossless"]]
    assert record["verdict"] == "holds" and len(lossless) == len(short_proof.settings())
    assert {line["rule"] for line in lossless} == {"standard", "block", "coupled"}
    assert all(line["total_variation"] == "0" and line["production"]["wrong"] == 0 for line in lossless)
    assert record["published"] == {"standard": "10/9", "block": "11/9"}
    bias = {line["rule"]: line["total_variation"] for line in record["lines"] if not line["lossless"]}
    assert bias["entropy"] == pytest.approx(0.11, abs=0.005) and bias["ascend_block"] == pytest.approx(0.38, abs=0.005)
    check_page(page, "Exact enumeration", "LOSSY")


def test_exact_certificate_as_tables(short_proof: Any) -> None:
    tables = [augury("--exact"), augury("--exact", "--full")]
    assert "--full" in tables[0].stdout and "--full" not in tables[1].stdout
    for result in tables:
        assert result.exit_code == 0
        for words in ("standard", "block", "coupled", "LOSSY", "fractions.Fraction", "HOLDS", "10/9"):
            assert words in result.stdout


def test_exact_certificate_fails_with_a_wrong_rule(short_proof: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from augury.verify import exact_rules, rejection

    # The residual of `standard` on the law of `block`: a rule that accepts by one and resamples by the other.
    monkeypatch.setitem(short_proof.EXACT, "block", (exact_rules.block, rejection.standard))
    result = augury("--exact", "--json")
    assert result.exit_code == 1
    record = json.loads(result.stdout)
    assert record["verdict"] == "does not hold"
    assert {line["rule"] for line in record["lines"] if not line["holds"]} == {"block"}
    assert "DOES NOT HOLD" in augury("--exact").stdout


def test_a_biased_line_fails() -> None:
    from augury.tools.certify.proof import ProofCertificate
    from augury.verify import exact

    line = exact.certify(exact.settings()[0])
    assert ProofCertificate([line], {}, 0.0).exit_code == 0
    assert ProofCertificate([line._replace(total_variation=Fraction(1, 10**6))], {}, 0.0).exit_code == 1
    assert ProofCertificate([], {}, 0.0).exit_code == 1  # proving nothing is no proof
