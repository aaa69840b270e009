// One forward pass in detail: the draft tree, the model's probability of each node, and the path that was accepted.

import { origin } from "./answer.js";
import { byId, draw, make } from "./dom.js";
import { arrange } from "./tree.js";

const ROW = 25.6; // 1.6rem, as in the style sheet
const LANE = 15;
const EVERY = 120; // milliseconds between two redrawings while an answer streams
const NAMES = { plain: "Plain", draft: "Accepted draft", correction: "After a rejection", bonus: "Bonus" };
const NARROW = matchMedia("(max-width: 960px)");

/** Shows the pass of the token that is hovered or focused, or else the latest. */
export class Inspector {
  constructor() {
    this.box = byId("step");
    this.held = null; // the answer whose token is hovered or focused
    this.drawn = 0;
  }

  /** Leave room for a chain of `tokens`, so that nothing below moves from pass to pass. */
  reserve(tokens) {
    byId("step-tree").style.setProperty("--rows", Math.min(tokens + 2, 13));
  }

  /** Watch an area for tokens that are pointed at, focused or moved to by keys. */
  watch(area, answerOf) {
    const look = (event) => {
      const token = event.target.closest?.(".tokens .token");
      if (!token) return;
      const answer = answerOf(token);
      if (answer) this.hold(answer, token);
    };
    area.addEventListener("pointerover", look);
    area.addEventListener("focusin", look);
    area.addEventListener("pointerleave", () => {
      const focused = document.activeElement.closest(".tokens .token");
      if (focused) look({ target: focused });
      else this.release();
    });
    area.addEventListener("focusout", () => this.release());
    area.addEventListener("keydown", (event) => walk(event));
  }

  hold(answer, token) {
    if (this.held !== answer) this.held?.mark(-1);
    this.held = answer;
    const number = Number(token.dataset.step);
    answer.mark(number);
    if (number < 0) return;
    if (NARROW.matches) byId("ask").prepend(this.box); // where a phone shows it beside the token
    this.show(answer, number, token);
    token.setAttribute("aria-describedby", "step-title step-words");
    if (NARROW.matches) token.scrollIntoView({ block: "nearest" });
  }

  release() {
    byId("step-home").append(this.box);
    this.held?.mark(-1);
    this.held = null;
  }

  /** Show the latest pass of an answer that streams. */
  follow(answer) {
    const now = performance.now();
    if (this.held || !answer.steps.length || now - this.drawn < EVERY) return;
    this.drawn = now;
    this.show(answer, answer.steps.length - 1, null);
  }

  /** Of an answer that has ended, show the pass that brought most tokens. */
  rest(answer) {
    const sizes = answer.steps.map((step) => step.tokens.length);
    if (!this.held && sizes.length) this.show(answer, sizes.indexOf(Math.max(...sizes)), null);
  }

  show(answer, number, token) {
    const step = answer.steps[number];
    this.box.classList.add("drawn");
    const batch = ` · batch of ${step.batch}`;
    byId("step-title").replaceChildren(
      `Pass ${number + 1} of ${answer.steps.length}`,
      make("span", { className: "ticks", textContent: `${step.ms.toFixed(1)} ms${batch}` }),
    );
    byId("step-words").textContent = (token ? `${NAMES[token.classList[1]]}. ` : "") + words(step);
    const tree = byId("step-tree");
    tree.replaceChildren(...rows(step, place(answer, number, token)));
    const looked = tree.querySelector(".looked-at");
    tree.scrollTop = looked ? looked.offsetTop - tree.clientHeight / 2 : 0;
  }
}

/** Which token of its pass is looked at; -1 if none. */
function place(answer, number, token) {
  if (!token) return -1;
  const mates = [...answer.tokens.querySelectorAll(".token")].filter((other) => Number(other.dataset.step) === number);
  const shown = answer.steps[number].tokens.map((t, i) => [t, i]).filter(([t]) => t.text);
  return shown[mates.indexOf(token)]?.[1] ?? -1;
}

function words(step) {
  if (!step.draft) return "No draft in this pass: the model wrote one token of its own.";
  const { ids, accepted } = step.draft;
  const own = step.tokens.length > accepted.length ? `, then one token of the model's own` : "";
  return `${ids.length} drafted, ${accepted.length} accepted${own}.`;
}

function rows(step, looked) {
  const tree = arrange(step);
  const width = LANE * tree.lanes;
  return tree.rows.map((row) => {
    const item = make("li", { className: classes(row, looked) });
    item.append(graphic(row, width), make("span", { className: "word", textContent: visible(row.text) }));
    if (row.share === null) item.append(make("span", { className: "said", textContent: row.note }));
    else {
      const bar = make("meter", { min: 0, max: 1, value: row.share });
      bar.setAttribute("aria-hidden", "true");
      const fate = row.kind === "accepted" ? "accepted" : "rejected";
      item.append(bar, make("span", { className: "share", textContent: share(row.share), title: fate }));
      item.setAttribute("aria-label", `${visible(row.text)}: ${share(row.share)}, ${fate}`);
    }
    return item;
  });
}

function classes(row, looked) {
  const own = row.kind === "own" ? `${origin(row.token)}-node` : row.kind;
  return looked >= 0 && row.at === looked ? `${own} looked-at` : own;
}

/** A row's own bit of the tree: lines that pass by, the line that arrives, the node. */
function graphic(row, width) {
  const x = (lane) => LANE * (lane + 0.5);
  const middle = ROW / 2;
  const svg = draw("svg", { width, height: ROW, viewBox: `0 0 ${width} ${ROW}`, "aria-hidden": "true" });
  for (const { lane, kept } of row.passing)
    svg.append(draw("line", { x1: x(lane), x2: x(lane), y1: 0, y2: ROW, class: kept }));
  for (const { lane, kept } of row.leaving) {
    const d =
      lane === row.lane
        ? `M${x(lane)} ${middle}V${ROW}`
        : `M${x(row.lane)} ${middle}C${x(lane)} ${middle} ${x(lane)} ${middle} ${x(lane)} ${ROW}`;
    svg.append(draw("path", { d, class: kept }));
  }
  if (row.kind !== "root")
    svg.append(draw("line", { x1: x(row.lane), x2: x(row.lane), y1: 0, y2: middle, class: row.kept }));
  if (row.kind === "own")
    svg.append(
      draw("rect", {
        x: x(row.lane) - 4,
        y: middle - 4,
        width: 8,
        height: 8,
        transform: `rotate(45 ${x(row.lane)} ${middle})`,
      }),
    );
  else svg.append(draw("circle", { cx: x(row.lane), cy: middle, r: 4.2, class: row.kept }));
  return svg;
}

const visible = (text) =>
  text === null
    ? "…"
    : text
        .replaceAll("\n", "⏎")
        .replaceAll("\t", "⇥")
        .replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length)) || "(no text)";
const share = (value) =>
  value > 0 && value < 0.001 ? "< 0.1 %" : `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)} %`;

/** Left and right move among an answer's tokens, up and down among its passes; Home and End go to its ends. */
function walk(event) {
  const token = event.target.closest?.(".tokens .token");
  if (!token || event.altKey || event.ctrlKey || event.metaKey) return;
  const all = [...token.closest(".tokens").querySelectorAll(".token")].filter((other) => other.checkVisibility());
  const at = all.indexOf(token);
  const another = (other) => other.dataset.step !== token.dataset.step;
  const down = all.findIndex((other, i) => i > at && another(other));
  const up = all.findLastIndex((other, i) => i < at && another(other));
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1, ArrowDown: down, ArrowUp: up }[
    event.key
  ];
  const next = to === undefined || to < 0 ? null : all[to];
  if (to !== undefined) event.preventDefault();
  if (!next) return;
  token.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}
