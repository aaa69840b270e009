"""The metrics of all replicas as one page: each sample is labelled with its replica."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


def merged(pages: Mapping[str, str]) -> str:
    """Merge the replicas' pages into one in Prometheus' text format, with each family's samples together."""
    told: dict[str, list[str]] = {}  # HELP and TYPE lines of each family
    samples: dict[str, list[str]] = {}
    for replica, page in pages.items():
        family = ""
        for line in page.splitlines():
            if line.startswith("# "):
                family = line.split(" ", 3)[2]
                seen = told.setdefault(family, [])
                if line.split(" ", 2)[1] not in {known.split(" ", 2)[1] for known in seen}:
                    seen.append(line)
            elif line:
                samples.setdefault(family, []).append(_labelled(line, replica))
    return "".join(f"{line}\n" for line in _lines(told, samples))


def _lines(told: dict[str, list[str]], samples: dict[str, list[str]]) -> Iterator[str]:
    for family in dict.fromkeys((*told, *samples)):
        yield from told.get(family, ())
        yield from samples.get(family, ())


def _labelled(sample: str, replica: str) -> str:
    """A sample with a `replica` label added; label values may hold spaces and braces, but no metric's name does."""
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f'{name}{{replica="{replica}"{"" if rest.startswith("}") else ","}{rest}'
    name, _, rest = sample.partition(" ")
    return f'{name}{{replica="{replica}"}} {rest}'
