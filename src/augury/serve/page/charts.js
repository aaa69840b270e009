// Six small charts of the last two minutes. The library is large, so it is loaded after everything else; the figures do
// not wait for it.

import { percent } from "./answer.js";
import { byId, make } from "./dom.js";

const SECONDS = 120;
const LIBRARY = "page/vendor/plotly.min.js";
const sum = (buckets, name) => buckets.reduce((all, bucket) => all + bucket[name], 0);
// Of the whole window: the last second's would jump with every request.
const over = (buckets, name, of) => (sum(buckets, of) ? sum(buckets, name) / sum(buckets, of) : null);
const shown = (value, write) => (value === null ? "–" : write(value));
// The current second is not over, so its count would always look like a dip.
const whole = (buckets) => buckets.slice(-SECONDS - 1, -1);

const CHARTS = [
  {
    title: "Tokens a second",
    range: [0, null],
    traces: (b) => [area(b, "tokens", "--accent")],
    now: (b) => shown(b.at(-1)?.tokens ?? null, String),
  },
  {
    title: "Acceptance rate",
    range: [0, 1],
    percent: true,
    traces: (b) => [line(b, "acceptance_rate", "--draft")],
    now: (b) => shown(over(b, "accepted", "drafted"), percent),
  },
  {
    title: "Mean length",
    range: [1, null],
    traces: (b) => [line(b, "mean_acceptance_length", "--draft")],
    now: (b) => shown(over(b, "accepted", "drafts"), (v) => (1 + v).toFixed(2)),
  },
  {
    title: "Accepted of drafted",
    range: [0, null],
    traces: (b) => [bars(b, "drafted", "--rejected", "drafted", 0.4), bars(b, "accepted", "--draft", "accepted", 1)],
    now: (b) => `${sum(b, "accepted")} of ${sum(b, "drafted")}`,
  },
  {
    title: "By position, in all",
    range: [0, 1],
    percent: true,
    positions: true,
    traces: (_, live) => [positions(live)],
    now: (_, live) => shown(rates(live)[0] ?? null, (v) => `first ${percent(v)}`),
  },
  {
    title: "K in use",
    range: [0, null],
    traces: (b) => [stairs(b, "k", "--bonus")],
    now: (b) => shown(b.at(-1)?.k ?? null, String),
  },
];

/** The charts, and their captions. */
export class Charts {
  constructor() {
    this.items = CHARTS.map((chart) => {
      const value = make("output");
      const plot = make("div", { className: "plot" });
      plot.setAttribute("role", "img");
      const figure = make("figure", { className: "chart" }, make("figcaption", {}, chart.title, value), plot);
      byId("charts").append(figure);
      return { chart, value, plot };
    });
    this.drawn = null;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (this.drawn = null));
  }

  /** Fetch the library; without it the figures stay. */
  load() {
    const script = make("script", { src: LIBRARY, async: true });
    const restore = withoutStyles();
    script.addEventListener("load", restore);
    script.addEventListener("error", restore);
    script.addEventListener("error", () =>
      byId("charts").before("No charts: the server has no plotly; pip install 'augury[serve]' brings it."),
    );
    document.head.append(script);
  }

  /** Take new figures. */
  update(live) {
    if (!live) return;
    const buckets = whole(live.buckets);
    for (const { chart, value, plot } of this.items) {
      value.textContent = chart.now(buckets, live);
      plot.setAttribute("aria-label", `${chart.title}: ${value.textContent}`);
    }
    const { totals } = live;
    const passes = `${totals.tokens} tokens in ${totals.steps} passes`;
    const drafts = `${totals.accepted} of ${totals.drafted} drafted tokens accepted`;
    byId("totals").textContent = `Since the start: ${passes}, ${drafts}.`;
    this.draw(buckets, live);
  }

  draw(buckets, live) {
    const busy = buckets.some((bucket) => bucket.tokens); // an empty chart need not be drawn again
    const stamp = JSON.stringify([live.totals.tokens, innerWidth, busy && buckets.at(-1).at]);
    if (!globalThis.Plotly || stamp === this.drawn) return;
    this.drawn = stamp;
    const config = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: false };
    for (const { chart, plot } of this.items) {
      const traces = chart.traces(buckets, live);
      globalThis.Plotly.react(plot, traces, layout(chart, buckets, traces), config);
    }
  }
}

/** Parts of the library that we do not use write style elements when it loads, which our policy refuses and the console
 *  reports; they get an inert element instead. Gives the way back. */
function withoutStyles() {
  document.createElement = (tag, ...rest) =>
    Document.prototype.createElement.call(document, tag === "style" ? "template" : tag, ...rest);
  return () => delete document.createElement;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const ago = (buckets) => buckets.map((bucket) => bucket.at - buckets.at(-1).at);

function series(buckets, name, rest) {
  return {
    x: ago(buckets),
    y: buckets.map((bucket) => bucket[name]),
    hovertemplate: "%{y:.3~g}<extra></extra>",
    ...rest,
  };
}

const line = (buckets, name, ink) =>
  series(buckets, name, {
    mode: "lines+markers",
    line: { color: colour(ink), width: 1.5 },
    marker: { size: 3, color: colour(ink) },
    connectgaps: false,
  });
const area = (buckets, name, ink) =>
  series(buckets, name, {
    mode: "lines",
    fill: "tozeroy",
    line: { color: colour(ink), width: 1.5 },
    fillcolor: `${colour(ink)}2e`,
  });
const stairs = (buckets, name, ink) =>
  series(buckets, name, { mode: "lines", line: { color: colour(ink), width: 2, shape: "hv" } });
const bars = (buckets, name, ink, words, opacity) =>
  series(buckets, name, {
    type: "bar",
    marker: { color: colour(ink), opacity },
    name: words,
    hovertemplate: `%{y} ${words}<extra></extra>`,
  });

const rates = ({ per_position: { drafted, accepted } }) => drafted.map((n, i) => (n ? accepted[i] / n : null));

function positions(live) {
  const y = rates(live);
  return {
    type: "bar",
    x: y.map((_, i) => i + 1),
    y,
    marker: { color: colour("--draft") },
    hovertemplate: "position %{x}: %{y:.0%}<extra></extra>",
  };
}

function layout(chart, buckets, traces) {
  const ink = colour("--soft");
  const grid = colour("--line");
  const time = {
    range: [Math.min(-30, buckets[0] ? buckets[0].at - buckets.at(-1).at : 0), 0.5],
    ticksuffix: " s",
    nticks: 3,
  };
  return {
    margin: { l: 28, r: 4, t: 6, b: 17 },
    height: 86,
    showlegend: false,
    barmode: "overlay",
    bargap: 0.15,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { size: 10, color: ink, family: "Inter, system-ui, sans-serif" },
    dragmode: false,
    hovermode: "closest",
    hoverlabel: { bgcolor: colour("--card"), bordercolor: grid, font: { color: colour("--ink"), size: 12 } },
    xaxis: {
      fixedrange: true,
      showgrid: false,
      zeroline: false,
      linecolor: grid,
      showline: true,
      ...(chart.positions ? { dtick: 1 } : time),
    },
    yaxis: {
      fixedrange: true,
      gridcolor: grid,
      gridwidth: 0.5,
      zeroline: false,
      nticks: 4,
      tickformat: chart.percent ? ".0%" : "~g",
      range: ranged(chart.range, traces),
    },
  };
}

/** From a chart's floor to a little above its ceiling, or above the highest value where it has none. */
const ranged = ([from, to], traces) => [from, 1.08 * (to ?? Math.max(from + 1, ...traces.flatMap((trace) => trace.y)))];
