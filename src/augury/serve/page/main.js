// The page put together: one question box for chat and race, tabs, keys, the state of the server.

import { Trouble } from "./api.js";
import { Charts } from "./charts.js";
import { Chat } from "./chat.js";
import { byId, make, say } from "./dom.js";
import { EXAMPLES } from "./examples.js";
import { Pulse } from "./live.js";
import { Race } from "./race.js";
import { Settings } from "./settings.js";
import { Inspector } from "./steps.js";

const settings = new Settings();
const inspector = new Inspector();
const chat = new Chat(settings, inspector);
const race = new Race(settings, inspector);
const charts = new Charts();
const pulse = new Pulse(settings);
const question = byId("question");
let running = null; // the AbortController of what is being answered
let racing = false;
let offered = null; // what the box was filled with for a race

async function send() {
  const asked = question.value.trim();
  if (!asked || running || byId("send").disabled) return;
  running = new AbortController();
  if (!racing) question.value = ""; // a race may be run again as it is
  fit();
  say(byId("notice"), null);
  show();
  try {
    const run = racing ? race.run : chat.ask;
    await run.call(racing ? race : chat, asked, running.signal, (words) => say(byId("notice"), words));
  } catch (error) {
    restore(asked);
    explain(error, running.signal);
  } finally {
    running = null;
    show();
  }
}

/** Put a question back, unless another has been begun. */
function restore(asked) {
  if (!question.value) question.value = asked;
  fit();
}

function explain(error, signal) {
  if (signal.aborted) return say(byId("notice"), null);
  if (!(error instanceof Trouble)) console.error(error);
  const full = !racing && error.full && chat.latest ? " The whole conversation counts: New chat begins another." : "";
  const words = error instanceof Trouble ? error.message + full : "The page itself failed; the console says more.";
  say(byId("notice"), words);
  if (error.status === 401) {
    byId("key-row").hidden = false;
    byId("key").focus();
  }
}

function stop() {
  running?.abort();
}

function show() {
  byId("stop").hidden = !running;
  byId("send").hidden = Boolean(running);
  byId("send").textContent = racing ? "Race" : "Send";
  byId("send").disabled = racing && settings.loaded === 0;
  byId("fresh").textContent = racing ? "Clear" : "New chat";
}

function fit() {
  question.style.height = "auto";
  question.style.height = `${question.scrollHeight + 2}px`;
}

function choose(tab) {
  if (running) stop();
  racing = tab.id === "tab-race";
  for (const other of document.querySelectorAll('[role="tab"]')) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", String(chosen));
    other.tabIndex = chosen ? 0 : -1;
    byId(other.getAttribute("aria-controls")).hidden = !chosen;
  }
  say(byId("notice"), null);
  if (racing) {
    offered = chat.latest ?? EXAMPLES[0].text; // a race needs a prompt, so offer one
    restore(race.latest ?? offered);
  } else if ([race.latest, offered].includes(question.value)) question.value = "";
  fit();
  show();
}

function tabs() {
  const all = [...document.querySelectorAll('[role="tab"]')];
  for (const [i, tab] of all.entries()) {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      const next = all[(i + 1) % all.length];
      choose(next);
      next.focus();
    });
  }
}

function keys() {
  question.addEventListener("input", fit);
  question.addEventListener("focus", () => {
    // Typing replaces what was only offered; a click sets the caret after this event, so the selection waits for it.
    if (racing && question.value === offered && !race.latest) setTimeout(() => question.select());
  });
  question.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  document.addEventListener("keydown", (event) => event.key === "Escape" && stop());
  byId("stop").addEventListener("click", () => (stop(), question.focus()));
  byId("fresh").addEventListener("click", () => {
    stop();
    (racing ? race : chat).clear();
    say(byId("notice"), null);
    question.focus();
  });
}

function examples() {
  for (const { title, words, text } of EXAMPLES) {
    const button = make("button", { type: "button" }, title, make("small", { textContent: words }));
    button.addEventListener("click", () => {
      question.value = text;
      fit();
      question.focus();
    });
    byId("examples").append(make("li", {}, button));
  }
}

/** The line at the top: what runs here, and whether it answers. */
function headline(live) {
  const health = byId("health");
  const up = Boolean(live?.healthy);
  const down = live?.leaving ? "the server is shutting down" : "the engine is not ready";
  const words = up ? "ready" : live ? down : "the server does not answer";
  if (health.textContent !== words) health.textContent = words;
  health.className = `health ${up ? "up" : "down"}`;
  if (!live) return;
  const parts = [
    live.model,
    live.method ? `${live.method}, K ${live.num_spec_tokens}` : "no speculation loaded",
    live.device,
  ];
  if (live.lossy) parts.push(`lossy rule: ${live.rule}`);
  byId("facts").textContent = parts.join(" · ");
  settings.bound(live.num_spec_tokens ?? 0);
  inspector.reserve(settings.loaded);
  show();
  if (racing && settings.loaded === 0)
    say(byId("notice"), "No race: this server was started without speculative_config.");
}

tabs();
keys();
examples();
show();
pulse.listen(headline);
pulse.listen((live) => charts.update(live));
pulse.run();
// The charts are loaded once the page is idle.
(globalThis.requestIdleCallback ?? setTimeout)(() => charts.load());
