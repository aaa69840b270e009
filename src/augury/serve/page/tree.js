// A draft tree as rows and lanes: one row a node, parents above children, the accepted path straight down on the left.

/** The rows of a step's tree, from the token before it to the one the model added. */
export function arrange(step) {
  const nodes = nodesOf(step);
  const order = [];
  visit(nodes[0], order);
  order.forEach((node, row) => (node.row = row));
  const lanes = assignLanes(order);
  return { rows: order.map((node) => ({ ...rowOf(node), ...linesAt(node, order) })), lanes };
}

function nodesOf(step) {
  const draft = step.draft ?? { ids: [], tokens: [], parents: [], accepted: [], probs: [] };
  const kept = new Set(draft.accepted);
  const root = { kind: "root", text: step.before, children: [], parent: null, note: step.draft ? "probability" : "" };
  const drafted = draft.ids.map((_, i) => ({
    kind: kept.has(i) ? "accepted" : "rejected",
    text: draft.tokens[i],
    share: draft.probs[i],
    children: [],
    at: draft.accepted.indexOf(i),
  }));
  draft.parents.forEach((parent, i) => attach(drafted[i], parent < 0 ? root : drafted[parent]));
  const token = step.tokens[draft.accepted.length];
  if (token) {
    const note = { bonus: "bonus", correction: "after a rejection", plain: "the model's own" }[
      token.bonus ? "bonus" : token.from
    ];
    const own = { kind: "own", text: token.text, token, children: [], note, at: draft.accepted.length };
    attach(own, draft.accepted.length ? drafted[draft.accepted.at(-1)] : root);
  }
  return [root, ...drafted];
}

function attach(node, parent) {
  node.parent = parent;
  parent.children.push(node);
}

const rank = (node) => ["accepted", "own", "rejected"].indexOf(node.kind);

/** Parents first; of siblings the kept one first, so that the path taken runs straight down. */
function visit(node, order) {
  order.push(node);
  node.children.sort((a, b) => rank(a) - rank(b));
  for (const child of node.children) visit(child, order);
}

/** A first child stays in its parent's lane; another takes the leftmost lane that is free from its parent's row on. */
function assignLanes(order) {
  const ends = []; // by lane: ranges of rows that are taken
  for (const node of order) {
    if (node.parent && node.parent.children[0] === node) {
      node.lane = node.parent.lane;
      continue;
    }
    const from = node.parent ? node.parent.row : 0;
    let last = node;
    while (last.children.length) last = last.children[0];
    let lane = 0;
    while ((ends[lane] ??= []).some(([a, b]) => a <= last.row && from <= b)) lane += 1;
    ends[lane].push([from, last.row]);
    node.lane = lane;
  }
  return ends.length;
}

function rowOf({ kind, text, share = null, note = "", token, at = -1, lane }) {
  return { kind, text, share, note, token, at, lane, kept: style({ kind }) };
}

const style = (node) => ({ accepted: "kept", own: "own", root: "kept" })[node.kind] ?? "";

/** The lines in a node's row: those that begin here, and those of others that pass. */
function linesAt(node, order) {
  const leaving = node.children.map((child) => ({ lane: child.lane, kept: style(child) }));
  const passing = order
    .filter((other) => other.parent && other.parent.row < node.row && node.row < other.row)
    .map((other) => ({ lane: other.lane, kept: style(other) }));
  return { leaving, passing };
}
