"""Prompt sets of our own: `chat` is open questions, `edit` is text to be given back with one change.

A small model copies only when it is set on its way, so an edit ends with the beginning of the answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from augury.config.errors import ConfigError


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """A question, and the first words of the answer where they are given."""

    user: str
    answer: str = ""

    def messages(self) -> list[dict[str, Any]]:
        """The conversation as a chat template wants it."""
        asked = [{"role": "user", "content": self.user}]
        return [*asked, {"role": "assistant", "content": self.answer}] if self.answer else asked

    def template_options(self) -> dict[str, bool]:
        """Go on with the answer that was begun, or begin one."""
        return {"continue_final_message": True} if self.answer else {"add_generation_prompt": True}


CHAT = tuple(
    BenchPrompt(question)
    for question in (
        "Why does the sky look blue at noon and red at sunset?",
        "How does a refrigerator keep food cold? Explain it to a ten-year-old.",
        "Plan a weekend in the mountains for two friends who like to walk and to cook.",
        "What should I think about before I adopt a dog?",
        "Write a short story about a lighthouse keeper who finds a letter.",
        "Explain what a hash table is and when I should use one.",
        "Give me five ideas for a birthday present for a grandmother who gardens.",
        "What caused the fall of the Roman Empire?",
        "How do I learn to play the guitar by myself?",
        "Compare trains and aeroplanes for a journey of five hundred kilometres.",
        "Write an email to my landlord about a leaking tap in the kitchen.",
        "What happens in the body when we sleep?",
    )
)

_CART = """def cart_total(items, discount, tax):
    total = 0
    for item in items:
        price = item["price"]
        quantity = item["quantity"]
        total = total + price * quantity
    if discount is not None:
        total = total - total * discount
    if tax is not None:
        total = total + total * tax
    if total < 0:
        total = 0
    return total"""

_LOG = """import sys

def read_lines(path):
    with open(path) as handle:
        lines = handle.readlines()
    return [line.strip() for line in lines]

def count_errors(lines):
    errors = 0
    for line in lines:
        if line.startswith("ERROR"):
            errors += 1
    return errors

def main():
    lines = read_lines(sys.argv[1])
    print("lines:", len(lines))
    print("errors:", count_errors(lines))"""

_USER = """function formatUser(user) {
  const name = user.firstName + " " + user.lastName;
  const city = user.address.city;
  const country = user.address.country;
  if (user.isAdmin) {
    return name + " (admin), " + city + ", " + country;
  }
  if (user.isGuest) {
    return name + " (guest), " + city + ", " + country;
  }
  return name + ", " + city + ", " + country;
}"""

_SERVERS = """{
  "timeout": 30,
  "retries": 3,
  "servers": [
    {"name": "alpha", "host": "alpha.example.com", "zone": "north", "enabled": true},
    {"name": "bravo", "host": "bravo.example.com", "zone": "south", "enabled": true},
    {"name": "charlie", "host": "charlie.example.com", "zone": "east", "enabled": false},
    {"name": "delta", "host": "delta.example.com", "zone": "west", "enabled": true}
  ]
}"""

_BOOK = """{
  "title": "The Garden at Night",
  "year": 1987,
  "author": {"name": "Mara Lindqvist", "country": "Sweden", "born": 1941},
  "publisher": {"name": "Harbour Press", "city": "Bristol", "country": "England"},
  "languages": ["English", "Swedish", "German", "Danish"],
  "chapters": ["The Gate", "The Well", "The Orchard", "The Wall", "The Lamp", "The Key"],
  "prizes": ["Northern Novel Prize", "Readers' Choice"]
}"""

_LETTER = (
    "Dear Mr. Harding, thank you for your letter of the third of May. We are sorry to hear that the lamp arrived with "
    "a broken shade. We have sent a new shade to your address today, and you can keep the old one. If the new shade "
    "does not fit, please write to us again and we will give you your money back. With kind regards, the team of the "
    "Northern Lamp Company."
)

_RIVER = (
    "The river begins in the hills above the village. It runs past the mill, under the stone bridge and through the "
    "market square. In spring the water is high and the children are told to stay away from the bank. In summer it is "
    "so low that you can walk across it in your shoes. In autumn the leaves of the old chestnut trees cover it from "
    "one side to the other."
)

_MEETING = (
    "The meeting of the garden club took place on Monday in the library. Mrs. Okafor opened the meeting and read the "
    "report of the last year. The club has forty-one members, six more than last year. Mr. Brandt explained how the "
    "money was spent: most of it went to tools, seeds and the new fence around the pond. The members then agreed to "
    "plant apple trees along the school road in October. Miss Tanaka will order the trees."
)


def _edit(instruction: str, text: str, begun: str, language: str = "") -> BenchPrompt:
    """Ask for a text with one change; the answer has begun, up to and with the words `begun` of the text."""
    at = text.index(begun) + len(begun)
    fence = f"```{language}\n" if language else ""
    close = "\n```" if language else ""
    return BenchPrompt(f"{fence}{text}{close}\n\n{instruction}", f"{fence}{text[:at]}")


EDIT = (
    _edit("Rename tax to vat and write the whole function again.", _CART, "total = total + price", "python"),
    _edit("Count lines that start with FATAL. Write the whole file again.", _LOG, "lines = handle", "python"),
    _edit('Change "(guest)" to "(visitor)". Write the whole function again.', _USER, "const city = user", "javascript"),
    _edit("Change the zone of delta to north. Write the whole JSON again.", _SERVERS, '"bravo", "host"', "json"),
    _edit("Change the last chapter to The Door. Write the whole JSON again.", _BOOK, '"name": "Mara', "json"),
    _edit("Write the letter again, from the Southern Lamp Company.", _LETTER, "We are sorry to hear"),
    _edit('Write the text again, with "stone bridge" changed to "wooden bridge".', _RIVER, "above the village."),
    _edit("Write the report again; the trees are planted in November.", _MEETING, "Mrs. Okafor opened"),
)

SETS: dict[str, tuple[BenchPrompt, ...]] = {"chat": CHAT, "edit": EDIT}


def load_prompts(name: str) -> tuple[BenchPrompt, ...]:
    """A built-in set by name, or a file: a text with a prompt a line, or JSON lines with `user` and maybe `answer`."""
    if name in SETS:
        return SETS[name]
    path = Path(name)
    if not path.is_file():
        raise ConfigError(f"--prompts {name}: neither a file nor one of the built-in sets ({', '.join(SETS)}).")
    prompts = tuple(_read(line, path) for line in path.read_text().splitlines() if line.strip())
    if not prompts:
        raise ConfigError(f"--prompts {name}: the file holds no prompt; write one a line.")
    return prompts


def _read(line: str, path: Path) -> BenchPrompt:
    if not line.lstrip().startswith("{"):
        return BenchPrompt(line.strip())
    try:
        entry = json.loads(line)
        return BenchPrompt(entry.get("user") or entry["prompt"], entry.get("answer", ""))
    except (ValueError, KeyError):
        raise ConfigError(f'--prompts {path}: cannot read {line[:60]!r}; write {{"user": "..."}} a line.') from None
