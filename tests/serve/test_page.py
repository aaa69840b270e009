"""The page in a real browser, against a real server: typed, streamed, coloured, drawn."""

# ruff: noqa: F811  (fixtures come from page_cases, and tests name them as arguments)
from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("selenium", reason="selenium is not installed: pip install 'augury[dev]'")
from browser import Browser
from cycling import LINE, QUESTION
from page_cases import FLAGS, KEY, NEEDS_BROWSER, model, page, server, window  # noqa: F401  (fixtures)
from served import Served

pytestmark = NEEDS_BROWSER
PARSERS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
ORIGINS = ("plain", "draft", "correction", "bonus")


def traced(server: Served, **options: Any) -> dict[str, Any]:
    """What the API says to the same question."""
    body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 256, "temperature": 0, **options}
    return dict(server.http.post("/v1/chat/completions", json={**body, "speculative": {"trace": True}}).json())


def origin(token: dict[str, Any]) -> str:
    return "bonus" if token.get("bonus") else str(token["from"])


# --- chat ----------------------------------------------------------------------------------------------------------


def test_an_answer_streams_in_the_colours_of_its_tokens(page: Browser, server: Served) -> None:
    page.ask(QUESTION)
    reply = traced(server)
    tokens = [token for step in reply["augury"]["steps"] for token in step["tokens"]]
    assert "".join(page.texts("#chat .token")) == reply["choices"][0]["message"]["content"]
    assert LINE in page.text("#chat .tokens") and page.run("return document.querySelector('.answer img')") is None
    for name in ORIGINS:
        expected = [token["text"] for token in tokens if origin(token) == name]
        assert page.texts(f"#chat .{name}") == expected and expected, name
    looks = [page.one(f".legend .{name}").value_of_css_property("text-decoration") for name in ORIGINS]
    assert len({look.replace("rgb", "") for look in looks}) == 4  # a line of its own for each
    figures = reply["metrics"]["speculative_decoding"]
    assert f"of {figures['num_draft_tokens']} drafted tokens accepted" in page.text("#chat .figures")
    assert f"mean length {figures['mean_acceptance_length']:.2f}" in page.text("#chat .figures")


def test_markup_stays_text(page: Browser) -> None:
    page.ask("<script>window.bad = 1</script><img src=x onerror='window.bad = 1'>")
    assert page.text(".question").startswith("<script>")
    assert page.run("return [window.bad ?? 0, document.querySelectorAll('main script, main li img').length]") == [0, 0]


LISTEN = """
const real = fetch;
window.sent = [];
window.fetch = (path, options) => (options.body && sent.push(JSON.parse(options.body)), real(path, options));
"""


def test_the_conversation_is_remembered_and_forgotten(page: Browser) -> None:
    page.run(LISTEN)
    page.ask(QUESTION)
    page.ask("more")
    answers = page.run("return [...document.querySelectorAll('#chat .tokens')].map((e) => e.textContent)")
    told = page.run("return sent[1].messages")
    assert [message["role"] for message in told] == ["user", "assistant", "user"]
    assert [message["content"] for message in told] == [QUESTION, answers[0], "more"]
    page.one("#fresh").click()
    assert page.all("#chat .answer") == [] and page.shown("#welcome")
    page.ask("anew")
    assert page.run("return sent[2].messages") == [{"role": "user", "content": "anew"}]


def test_settings_reach_the_server_and_outlive_the_page(page: Browser, server: Served) -> None:
    for name, value in {"max-tokens": "70", "temperature": "1", "seed": "11", "k": "2"}.items():
        page.one(f"#{name}").clear()
        page.one(f"#{name}").send_keys(value)
    page.driver.refresh()
    page.until(lambda: page.text("#health") == "ready")
    page.ask(QUESTION)
    reply = traced(server, max_tokens=70, temperature=1, seed=11)
    assert "".join(page.texts("#chat .token")) == reply["choices"][0]["message"]["content"]
    page.hover(page.all("#chat .draft")[0])
    assert len(page.all("#step-tree .accepted, #step-tree .rejected")) == 2  # K
    page.one("#speculation").click()
    page.ask(QUESTION)
    assert page.texts("#chat li:last-child .draft") == [] and "no drafts" in page.texts("#chat .figures")[-1]


# --- one pass ------------------------------------------------------------------------------------------------------


def test_hovering_draws_the_draft_of_a_tokens_pass(page: Browser, server: Served) -> None:
    page.ask(QUESTION)
    steps = traced(server)["augury"]["steps"]
    number = next(i for i, step in enumerate(steps) if "draft" in step and len(step["draft"]["accepted"]) < 3)
    step = steps[number]
    page.hover(page.one(f'.answer [data-step="{number}"]'))
    assert page.text("#step-title").startswith(f"Pass {number + 1} of {len(steps)}")
    assert "ms · batch of 1" in page.text("#step-title")
    kept, drafted = len(step["draft"]["accepted"]), len(step["draft"]["ids"])
    assert len(page.all("#step-tree .accepted")) == kept and len(page.all("#step-tree .rejected")) == drafted - kept
    shares = page.run("return [...document.querySelectorAll('#step-tree meter')].map((m) => m.value)")
    assert sorted(shares) == pytest.approx(sorted(step["draft"]["probs"]))
    assert len(page.all(".same-step")) == len(step["tokens"])


def test_trees_are_drawn_without_lines_that_cross_nodes(page: Browser) -> None:
    draws = random.Random(5)
    for _ in range(60):
        parents = [draws.randrange(-1, i) if i else -1 for i in range(draws.randrange(1, 20))]
        accepted, at = [], -1
        while (children := [i for i, p in enumerate(parents) if p == at]) and draws.random() < 0.7:
            at = draws.choice(children)
            accepted.append(at)
        names = [f"n{i}" for i in range(len(parents))]
        draft = {"ids": parents, "tokens": names, "parents": parents, "accepted": accepted, "probs": [0.5] * len(names)}
        step: dict[str, Any] = {
            "tokens": [{"from": "draft", "text": names[i]} for i in accepted],
            "draft": draft,
            "before": "b",
        }
        step["tokens"].append({"from": "correction", "text": "own"})
        tree = page.run("return import('/page/tree.js').then((m) => m.arrange(arguments[0]))", step)
        check_tree(tree, parents, accepted)


def check_tree(tree: dict[str, Any], parents: list[int], accepted: list[int]) -> None:
    rows = {row["text"]: i for i, row in enumerate(tree["rows"])}
    assert len(rows) == len(parents) + 2 == len(tree["rows"])
    assert all(rows["b" if parent < 0 else f"n{parent}"] < rows[f"n{i}"] for i, parent in enumerate(parents))
    path = ["b", *(f"n{i}" for i in accepted), "own"]
    assert [tree["rows"][i]["text"] for i in range(len(path))] == path  # straight down, first of all
    assert {tree["rows"][rows[name]]["lane"] for name in path} == {0}
    for row in tree["rows"]:
        passing = {line["lane"] for line in row["passing"]}
        assert row["lane"] not in passing and max(passing | {row["lane"]}) < tree["lanes"]
