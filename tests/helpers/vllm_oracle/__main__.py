"""vLLM's own class against Augury: `PYTHONPATH=tests/helpers python -m vllm_oracle 0.32.0 --out differences.json`.

Exit code 0 when `config check` agrees in at least 97 % and every difference has a verdict, 1 otherwise, 2 if no wheel.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from vllm_oracle.cases import all_cases
from vllm_oracle.checkpoints import make
from vllm_oracle.compare import differences, summary, table
from vllm_oracle.drawn import drawn
from vllm_oracle.record import write
from vllm_oracle.sides import theirs
from vllm_oracle.wheel import INSTALLED, NoWheel, download, release_of, unzipped

ENOUGH = 0.97


def main() -> int:
    """Ask both sides everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("release", nargs="?", help="a release on PyPI; it is downloaded, a few hundred MB")
    parser.add_argument("--wheel", type=Path, help="a wheel or its unzipped folder, instead")
    parser.add_argument("--installed", metavar="PYTHON", help="ask the vLLM that this Python has installed, instead")
    parser.add_argument("--out", type=Path, help="every difference as JSON")
    parser.add_argument("--record", action="store_true", help="renew the record that the tests read")
    parser.add_argument("--drawn", type=int, default=0, help="ask this many configurations drawn at random instead")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    asked = parser.parse_args()
    if [asked.release, asked.wheel, asked.installed].count(None) != 2:
        parser.error("name a release, a wheel with --wheel, or a Python with --installed")
    try:
        folder, release = _named(asked)
    except NoWheel as error:
        parser.error(str(error))
    cases = drawn(asked.drawn, asked.seed) or all_cases()
    with tempfile.TemporaryDirectory() as name:
        models = make(Path(name))
        said = theirs(cases, folder, models, asked.installed or sys.executable)
        answers = dict(zip((case.name for case in cases), said, strict=True))
        found, counts = differences(cases, answers, release, models)
        if asked.record:
            write(release, answers, models)
    figures = {"release": release, **summary(found, counts)}
    if asked.out:
        asked.out.write_text(json.dumps({**figures, "differences": [one._asdict() for one in found]}, indent=1) + "\n")
    print(json.dumps(figures, indent=1), table(found), sep="\n\n")
    return 0 if figures["share"]["config check"] >= ENOUGH and not figures["without_verdict"] else 1


def _named(asked: argparse.Namespace) -> tuple[Path, str]:
    """Where vLLM is, and which release."""
    if asked.installed is None:
        folder = unzipped(asked.wheel) if asked.wheel else download(asked.release)
        return folder, release_of(folder)
    says = "import logging; logging.disable(); import vllm; print(vllm.__version__)"
    done = subprocess.run([asked.installed, "-c", says], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoWheel(f"{asked.installed} has no vLLM that can be imported: {done.stderr.strip()[-200:]}")
    return Path(INSTALLED), done.stdout.split()[-1].partition("+")[0]


if __name__ == "__main__":
    sys.exit(main())
