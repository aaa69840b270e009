// One answer as it grows: its tokens, each marked by where it came from, and the forward passes that produced them.

import { make } from "./dom.js";
import { Fences } from "./fences.js";
import { Folds, pieces } from "./folds.js";

/** Where a token came from, as a class name. */
export const origin = (token) => (token.bonus ? "bonus" : token.from);

/** An answer on the page. */
export class Answer {
  constructor() {
    this.text = "";
    this.steps = [];
    this.metrics = null;
    this.ended = null; // why, once it has
    this.times = []; // of each pass, in seconds since the first: [when, tokens so far]
    this.tokens = make("div", { className: "tokens waiting" });
    this.tokens.setAttribute("role", "group");
    this.tokens.setAttribute("aria-label", "Answer; arrow keys move from token to token");
    this.figures = make("small", { className: "figures" });
    this.element = make("div", { className: "answer" }, this.tokens, this.figures);
    this.fences = new Fences();
    this.folds = new Folds(this.tokens);
    this.said = []; // since the last pass that is on the page
    this.spelled = 0; // characters that are on the page
    this.begun = 0;
    this.ids = [];
  }

  /** Take one chunk of the stream; returns its text. */
  add(chunk) {
    const choice = chunk.choices?.[0];
    const fresh = choice?.delta?.content ?? "";
    this.text += fresh;
    this.said.push(...pieces(choice?.delta));
    for (const step of chunk.augury?.steps ?? []) this.addStep(step);
    if (this.said.length && !chunk.augury && !this.steps.length) this.spell();
    this.ended = choice?.finish_reason ?? this.ended;
    this.metrics = chunk.metrics?.speculative_decoding ?? this.metrics;
    return fresh;
  }

  addStep(step) {
    const now = performance.now() / 1000;
    this.begun ||= now;
    this.ids.push(...step.tokens.map((token) => token.id));
    const shown = step.tokens.filter((token) => token.text);
    this.folds.put(
      shown.map((token) => this.made(token, this.steps.length)),
      this.said.splice(0),
    );
    this.steps.push({ ...step, before: this.steps.length ? lastText(this.steps.at(-1)) : null });
    this.times.push([now - this.begun, this.ids.length]);
  }

  /** Show text that came without its passes. */
  spell() {
    const said = this.said.splice(0);
    this.folds.put([this.made({ text: said.map(({ text }) => text).join(""), from: "plain" }, -1)], said);
  }

  made(token, step) {
    const code = this.fences.read(token.text) ? " code" : "";
    const made = make("span", {
      className: `token ${origin(token)}${code}`,
      textContent: token.text,
      tabIndex: this.spelled ? -1 : 0,
    });
    made.dataset.step = step;
    made.dataset.id = token.id ?? "";
    this.spelled += token.text.length;
    return made;
  }

  /** The stream is over. */
  close(stopped = false) {
    if (this.said.length) this.spell();
    this.folds.flush();
    const open = this.tokens.querySelector(":scope > .token"); // the first token may be folded away
    if (open) open.tabIndex = 0;
    this.tokens.classList.remove("waiting");
    this.figures.textContent = this.words(stopped);
  }

  get drafted() {
    return this.steps.reduce((sum, step) => sum + (step.draft?.ids.length ?? 0), 0);
  }

  get accepted() {
    return this.steps.reduce((sum, step) => sum + (step.draft?.accepted.length ?? 0), 0);
  }

  /** Seconds from the first token to the last. */
  get seconds() {
    return this.times.length ? this.times.at(-1)[0] : 0;
  }

  /** Tokens per second, without the first pass, which read the prompt. */
  get speed() {
    const first = this.times[0]?.[1] ?? 0;
    return this.seconds > 0 ? (this.ids.length - first) / this.seconds : 0;
  }

  words(stopped) {
    if (!this.steps.length) return stopped ? "stopped before the first token" : "";
    const parts = [`${count(this.ids.length, "token")} in ${count(this.steps.length, "pass", "passes")}`];
    if (this.speed) parts.push(`${this.speed.toFixed(1)} tok/s`);
    const drafts = this.steps.filter((step) => step.draft).length;
    if (drafts) {
      parts.push(`${percent(this.accepted / this.drafted)} of ${this.drafted} drafted tokens accepted`);
      parts.push(`mean length ${(1 + this.accepted / drafts).toFixed(2)}`);
    } else if (this.metrics?.enabled === false) parts.push(`no drafts: ${this.metrics.why}`);
    else parts.push("nothing to draft from");
    if (stopped) parts.push("stopped");
    else if (this.ended === "length") parts.push("stopped at the token limit");
    return parts.join(" · ");
  }

  /** Mark the tokens of one pass. */
  mark(step) {
    for (const token of this.tokens.querySelectorAll(".token")) token.classList.toggle("same-step", Number(token.dataset.step) === step);
  }
}

/** A share as a percentage. */
export const percent = (share) => `${Math.round(100 * share)} %`;

/** A number with its noun. */
export const count = (number, one, many = `${one}s`) => `${number} ${number === 1 ? one : many}`;

const lastText = (step) => step.tokens.at(-1)?.text || null;
