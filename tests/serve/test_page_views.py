"""The page in a real browser: its figures, the race, other screens and keyboards; and what goes wrong."""

# ruff: noqa: F811  (fixtures come from page_cases, and tests name them as arguments)
from __future__ import annotations

import json
import signal
from os import kill
from pathlib import Path
from threading import Thread

import pytest

pytest.importorskip("selenium", reason="selenium is not installed: pip install 'augury[dev]'")
import served as serving
from browser import Browser
from cycling import LINE, QUESTION
from page_cases import FLAGS, KEY, NEEDS_BROWSER, model, page, server, window  # noqa: F401  (fixtures)
from selenium.webdriver.common.keys import Keys
from served import Served, served

pytestmark = NEEDS_BROWSER
PARSERS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
ORIGINS = ("plain", "draft", "correction", "bonus")


# --- the engine's figures ------------------------------------------------------------------------------------------


def test_charts_move(page: Browser, server: Served) -> None:
    page.until(lambda: page.run("return document.querySelectorAll('.plot .main-svg').length >= 6"))
    before = page.text("#totals")
    page.ask(QUESTION)
    live = server.until_idle()
    total = f"{live['totals']['tokens']} tokens in {live['totals']['steps']} passes"
    page.until(lambda: total in page.text("#totals"))
    assert page.text("#totals") != before
    highest = "return [...document.querySelectorAll('.plot')].map((p) => Math.max(...p.data.flatMap((t) => t.y)))"
    page.until(lambda: all(value > 0 for value in page.run(highest)))  # every chart has something to show
    rate = live["per_position"]["accepted"][0] / live["per_position"]["drafted"][0]
    assert page.run("return document.querySelectorAll('.plot')[4].data[0].y[0]") == pytest.approx(rate, abs=0.05)
    page.until(lambda: page.texts(".chart output")[1] == of_the_window(server))


def of_the_window(server: Served) -> str:
    """The acceptance rate of the last two minutes, by the server's own figures."""
    buckets = server.http.get("/augury/live").json()["buckets"][-121:-1]
    drafted, accepted = (sum(bucket[name] for bucket in buckets) for name in ("drafted", "accepted"))
    return f"{100 * accepted / drafted:.0f} %"


def test_the_race_is_won_with_the_same_text(page: Browser, server: Served) -> None:
    page.one("#temperature").clear()
    page.one("#temperature").send_keys("1")  # the same seed, not only the same greedy choice
    page.one("#tab-race").click()
    page.ask(QUESTION)
    plain, fast = page.text("#lane-plain .tokens"), page.text("#lane-speculative .tokens")
    assert plain == fast != ""
    assert page.one("#verdict").get_attribute("data-equal") == "true" and "equal" in page.text("#verdict")
    assert float(page.text("#verdict strong").rstrip("×")) > 0
    assert page.all("#lane-plain .draft") == [] and page.all("#lane-speculative .draft")
    assert page.run("return [...document.querySelectorAll('.lane progress')].map((p) => p.value)") == [1, 1]
    assert float(page.text("#lane-plain .clock").removesuffix(" s")) > 0


def test_the_race_shows_its_prompt_and_can_be_run_again(page: Browser) -> None:
    page.one("#tab-race").click()
    selected = "const q = document.getElementById('question'); return q.value.slice(q.selectionStart, q.selectionEnd)"
    offered = page.one("#question").get_attribute("value")
    page.one("#question").click()
    page.until(lambda: page.run(selected) == offered != "")
    page.press(QUESTION, Keys.ENTER)  # typing replaces the example
    page.until(lambda: page.text("#verdict"))
    assert page.text("#raced") == QUESTION == page.one("#question").get_attribute("value") and page.shown("#raced")
    page.one("#tab-chat").click()
    assert page.one("#question").get_attribute("value") == ""
    page.one("#tab-race").click()
    assert page.one("#question").get_attribute("value") == QUESTION
    page.run("document.getElementById('verdict').replaceChildren()")
    page.one("#send").click()  # again, as it is
    page.until(lambda: page.text("#verdict"))
    assert page.text("#raced") == QUESTION
    page.one("#fresh").click()
    assert not page.shown("#raced")


def test_the_races_results_are_in_view(page: Browser, server: Served) -> None:
    """On a small laptop, with a long prompt and long answers: nothing of the panel has to be scrolled to."""
    page.open(server.url, 1280, 720)
    page.one("#tab-race").click()
    page.ask(" ".join([QUESTION] * 12), seconds=90)  # two answers of 256 tokens
    seen = "const box = arguments[0].getBoundingClientRect(); return [box.top, box.bottom, box.height]"
    top, _, _ = page.run(seen, page.one("#race"))
    floor, _, _ = page.run(seen, page.one("#ask"))
    for place in (
        "#verdict",
        "#lane-plain .clock",
        "#lane-speculative .clock",
        "#lane-plain .figures",
        "#lane-speculative .figures",
        "#lane-plain .tokens",
        "#lane-speculative .tokens",
    ):
        above, below, height = page.run(seen, page.one(place))
        assert top <= above and below <= floor and height >= 15, place
    panel = page.one("#race")
    assert page.run("return arguments[0].scrollHeight <= arguments[0].clientHeight + 1", panel)


def test_reasoning_and_calls_are_folded(window: Browser, model: Path) -> None:
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    written = f"<think>Rome, then.</think>One moment.\n{call}"
    tool = {"type": "function", "function": {"name": "weather"}}
    with served(model, "--served-model-name", "toy", *PARSERS) as parsing:
        window.open(parsing.url)
        window.one("#more").send_keys(json.dumps({"structured_outputs": {"choice": [written]}, "tools": [tool]}))
        window.ask(f"Say this: {written}")
    assert window.texts("#chat .folded summary") == ["Reasoning", "Call to weather"]
    assert window.run("return document.querySelectorAll('.folded[open]').length") == 0
    assert window.texts(".folded-text") == ["<think>Rome, then.</think>", f"\n{call}"]
    assert "".join(window.texts("#chat .tokens > .token")) == "One moment."
    window.one("#chat .folded summary").click()
    assert window.one("#chat .folded .token").is_displayed()
    window.one("#more").clear()
    window.one("#more").send_keys("[1]")
    assert not window.run("return document.getElementById('more').validity.valid")
    window.driver.get("about:blank")  # the server has gone; what was asked of it is no news for the next test
    window.complaints(), window.hosts()


# --- for everybody -------------------------------------------------------------------------------------------------


def test_by_keyboard_alone(page: Browser, server: Served) -> None:
    focused = "return document.activeElement.id || document.activeElement.className"
    assert page.run(focused) == "question"
    page.press("one")
    page.press(Keys.ENTER, shift=True)
    page.press(QUESTION, Keys.ENTER)
    page.until(lambda: page.text("#chat .figures"))
    assert page.text(".question") == f"one\n{QUESTION}"
    assert page.run("return document.getElementById('spoken').textContent").strip()  # a screen reader hears it
    page.press(Keys.TAB, shift=True)  # back from the question box: into the answer, one stop in all
    assert "token" in page.run(focused)
    first = page.text("#step-title")
    page.press(Keys.END, Keys.ARROW_LEFT)
    assert page.run("return document.activeElement === [...document.querySelector('.tokens').children].at(-2)")
    assert page.text("#step-title") != first
    assert page.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.run("document.getElementById('tab-chat').focus()")
    page.press(Keys.ARROW_RIGHT)
    assert page.run(focused) == "tab-race" and page.shown("#race")


def test_escape_stops_and_the_page_goes_on(page: Browser, server: Served) -> None:
    kill(server.engine_pid(), signal.SIGSTOP)  # an answer that takes for ever
    try:
        page.send("wait")
        page.until(lambda: page.shown("#stop"))
        page.press(Keys.ESCAPE)
        page.until(lambda: not page.shown("#stop"))
    finally:
        kill(server.engine_pid(), signal.SIGCONT)
    assert page.one("#question").get_attribute("value") == "wait"  # the question is not lost
    page.ask(QUESTION)
    assert page.all("#chat .draft")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_schemes_can_be_read(page: Browser, server: Served, tmp_path: Path, scheme: str) -> None:
    page.open(server.url, scheme=scheme)
    page.ask(QUESTION)
    page.hover(page.all("#chat .correction")[0])
    assert page.driver.save_screenshot(str(tmp_path / f"{scheme}.png"))
    told = page.run(CONTRAST)
    assert len(told) > 60 and min(ratio for _, ratio in told) >= 4.5, sorted(told, key=lambda pair: pair[1])[:3]
    ground = page.run("return getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) > 380) == (scheme == "light")


# The contrast (WCAG 2) of every text against what lies behind it, tints laid over one another.
CONTRAST = """
const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
const behind = (element) => {
  const layers = [];
  for (let at = element; at; at = at.parentElement) layers.unshift(getComputedStyle(at).backgroundColor);
  return layers;
};
const paint = (layers) => {
  canvas.clearRect(0, 0, 1, 1);
  for (const layer of layers) { canvas.fillStyle = layer; canvas.fillRect(0, 0, 1, 1); }
  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
const light = (rgb) => {
  const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const told = [];
for (const element of document.querySelectorAll("h1, h2, p, span, small, label, button, li, output, figcaption")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || !element.checkVisibility() || element.closest(".hidden") || element.disabled) continue;
  const layers = behind(element);
  const [a, b] = [light(paint(layers)), light(paint([...layers, getComputedStyle(element).color]))];
  told.push([element.textContent.slice(0, 30), (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)]);
}
return told;
"""


def test_a_phone_needs_no_sideways_scroll(page: Browser, server: Served) -> None:
    page.open(server.url, 360, 700)
    too_wide = "return document.documentElement.scrollWidth > innerWidth"
    assert not page.run(too_wide)
    page.ask("w" * 300 + QUESTION)
    assert not page.run(too_wide)
    page.run("document.querySelector('#chat .draft').focus()")
    box = page.run("return document.getElementById('step').getBoundingClientRect().toJSON()")
    assert box["top"] >= 0 and box["bottom"] <= 700  # the draft is in view beside its token
    page.run("document.getElementById('settings').open = true")
    page.one("#tab-race").click()
    page.ask(QUESTION)
    assert not page.run(too_wide)


# --- when things go wrong ------------------------------------------------------------------------------------------


def test_a_conversation_that_outgrows_the_context(page: Browser) -> None:
    page.ask("x" * 1100)
    assert "max_model_len" in page.text("#notice") and "New chat" not in page.text("#notice")  # no chat to blame
    page.ask(QUESTION)
    page.ask("x" * 900)
    assert "New chat begins another" in page.text("#notice")
    page.one("#fresh").click()
    page.ask("x" * 900)  # alone it has room
    assert page.text("#chat .tokens") and not page.shown("#notice")
    assert len(page.complaints()) == 2  # the browser's own lines about the two refusals


@pytest.mark.slow
def test_keys_crowds_and_a_server_that_goes_away(
    window: Browser, server: Served, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last test of this file, since it ends the server."""
    window.remember("sessionStorage.clear()")
    window.open(server.url)
    window.send("hello")
    window.until(lambda: window.shown("#key"))
    assert "API key" in window.text("#notice") and window.one("#question").get_attribute("value") == "hello"
    window.one("#key").send_keys(KEY)
    window.ask("hello")
    assert window.text("#chat .tokens") and not window.shown("#notice")

    engine = server.engine_pid()
    kill(engine, signal.SIGSTOP)  # one request takes for ever, and one is the limit
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}
    other = Thread(target=lambda: server.http.post("/v1/chat/completions", json=body))
    other.start()
    window.until(lambda: server.http.get("/load").json()["server_load"] == 1)
    window.send("are you there")
    window.until(lambda: "busy" in window.text("#notice"))
    server.process.send_signal(signal.SIGTERM)
    window.until(lambda: "not taking requests" in window.text("#notice"))
    window.until(lambda: window.text("#health") == "the server is shutting down")
    kill(engine, signal.SIGCONT)
    other.join()
    server.process.wait(120)
    window.until(lambda: "does not answer" in window.text("#notice"))
    window.until(lambda: window.text("#health") == "the server does not answer")

    monkeypatch.setattr(serving, "free_port", lambda: server.port)
    with served(model, *FLAGS):  # the same question is still being asked
        window.until(lambda: not window.shown("#stop"))
        assert window.texts("#chat .question") == ["hello", "are you there"]
        assert LINE in window.texts("#chat .tokens")[1] and not window.shown("#notice")
        window.until(lambda: window.text("#health") == "ready")
    window.complaints()  # which there were, of requests that failed
    window.hosts()
