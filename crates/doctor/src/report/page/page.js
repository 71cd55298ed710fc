"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const make = (tag, text, parent, kind) => {
  const element = document.createElement(tag);
  if (text !== undefined && text !== null) element.textContent = text;
  if (kind) element.className = kind;
  if (parent) parent.append(element);
  return element;
};
const show = (id) => { byId(id).hidden = false; return byId(id); };
const percent = (share) => (share * 100).toFixed(share < 0.0995 ? 1 : 0) + "%";

// Left and right move within a row of tabs, as the pattern for tabs has it.
function tabRow(row, tabs, choose) {
  const buttons = tabs.map((text, index) => {
    const button = make("button", text, row);
    button.setAttribute("role", "tab");
    button.onclick = () => { pick(index); choose(index); };
    button.onkeydown = (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = (index + step + tabs.length) % tabs.length;
      pick(next);
      choose(next);
      buttons[next].focus();
    };
    return button;
  });
  const pick = (chosen) => buttons.forEach((button, index) => {
    button.setAttribute("aria-selected", index === chosen);
    button.tabIndex = index === chosen ? 0 : -1;
  });
  return pick;
}

// For a comparison: both sentences, and each change.
function showChanges() {
  byId("name").textContent = data.about;
  byId("sentence").textContent = "After: " + data.after;
  document.title = data.after;
  show("found").querySelector("h2").textContent = "Changes";
  const list = byId("findings");
  make("p", "Before: " + data.before, list);
  if (!data.changes.length) make("p", "No finding appeared, is gone, or changed by more than the sampling error.", list);
  data.changes.forEach((change, index) => {
    const card = make("li", null, list, "finding");
    make("h3", `${index + 1}. ${change.fate}: ${change.title}`, card);
    make("div", change.detail, card, "small");
  });
}

function showHead() {
  byId("name").textContent = data.name;
  byId("sentence").textContent = data.sentence;
  document.title = data.name + ": " + data.sentence;
  document.querySelector("header").className = data.mood;
  for (const [name, value] of data.facts) {
    const fact = make("div", null, byId("facts"));
    make("dt", name, fact);
    make("dd", value, fact);
  }
  if (!data.budget) return;
  show("budget");
  const [whose, parts] = data.budget;
  byId("whose").textContent = whose;
  for (const { name, kind, share } of parts) {
    const item = make("li", null, byId("parts"), "key " + kind);
    item.append(name + " ");
    make("b", percent(share), item);
    if (share >= 0.002) make("div", null, byId("bar"), kind).style.flex = `${share} 0 0`;
  }
}

function showFindings() {
  if (!data.findings.length) return;
  const cards = data.findings.map((finding, index) => {
    const card = make("li", null, show("found").querySelector("ol"), "finding");
    card.tabIndex = 0;
    make("h3", `${index + 1}. ${finding.title === null ? "Evidence for the headline" : finding.title}`, card);
    const figures = make("div", null, card, "small");
    make("span", finding.figures, figures);
    const list = make("ul", null, card);
    for (const [what, command] of finding.evidence) make("code", command, make("li", what, list));
    if (finding.next_step) {
      const next = make("p", null, card, "next");
      make("b", "Next: ", next);
      next.append(finding.next_step);
    }
    if (isInGraphs(finding)) {
      card.classList.add("can");
      finding.state = make("span", "", figures, "state");
      card.onclick = (event) => {
        if (event.target.closest("code") || String(getSelection())) return;
        markFinding(finding);
        byId("stacks").scrollIntoView({ block: "start" });
      };
    }
    finding.card = card;
    card.onkeydown = (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step) cards[Math.min(cards.length - 1, Math.max(0, index + step))].focus();
      else if ((event.key === "Enter" || event.key === " ") && finding.state) markFinding(finding);
      else return;
      event.preventDefault();
    };
    return card;
  });
}

function showChains() {
  for (const chain of data.chains) {
    const list = make("ol", null, show("chains"), "chain");
    for (const link of chain) {
      const box = make("div", null, make("li", null, list));
      make("b", link.name, box);
      make("span", link.detail, box, "small");
    }
  }
}

const amount = (value, unit) => unit !== "us" ? `${value.toLocaleString("en")} ${unit}`
  : value < 1e6 ? `${(value / 1e3).toFixed(1)} ms` : `${(value / 1e6).toFixed(2)} s`;

// A callee with this part of its caller is the only one that matters.
const CHAIN = 0.99;
const ROW = 20;
let graph = data.graphs[0], zoom = null, marked = null, boxes = [], cursor = null, isWhole = false;

const nextInChain = (node) => node.c && node.c.length === 1 && node.c[0].v >= CHAIN * node.v ? node.c[0] : null;

// The first node with more than one callee: everything above it is the same for all stacks.
function firstFork(node) {
  for (let next = nextInChain(node); next && next.c; next = nextInChain(node)) node = next;
  return node;
}

// The nodes that are drawn as one box. Kernel and user code stay apart.
function chainOf(node) {
  const chain = [node];
  if (!byId("fold").checked || node === zoom) return chain;
  for (let next = nextInChain(node); next && !next.k === !node.k; next = nextInChain(next)) chain.push(next);
  return chain;
}

const nameOf = (node) => data.names[node.n];
const isMarked = (node) => marked !== null && marked(nameOf(node));
const valueOf = (node, test) =>
  test(nameOf(node)) ? node.v : (node.c || []).reduce((sum, child) => sum + valueOf(child, test), 0);
const shareOf = (one, test) => valueOf(one.root, test) / Math.max(1, one.root.v);
const testOf = (finding) => { const names = new Set(finding.frames); return (name) => names.has(name); };
const isInGraphs = (finding) => data.graphs.some((one) => valueOf(one.root, testOf(finding)) > 0);

function mark(test, finding) {
  marked = test;
  for (const one of data.findings || []) {
    one.card.classList.toggle("on", one === finding);
    if (one.state) one.state.textContent = one === finding ? "marked in the graph" : "";
  }
  byId("clear").hidden = !test;
  draw();
}

// Marks the functions of a finding, in the first graph of which they take much more than of the others.
const MUCH_MORE = 1.2;
function markFinding(finding) {
  const test = testOf(finding);
  const best = data.graphs.reduce((best, one) => shareOf(one, test) > MUCH_MORE * shareOf(best, test) ? one : best);
  if (valueOf(graph.root, test) === 0 || best !== graph) open(best);
  byId("search").value = "";
  mark(test, finding);
}

let pickTab = () => {};
function open(one) {
  graph = one;
  pickTab(data.graphs.indexOf(one));
  zoomTo(firstFork(one.root));
}

function zoomTo(node) {
  zoom = node;
  cursor = null;
  isWhole = false;
  byId("detail").textContent = "";
  draw();
}

function showGraphs() {
  if (!data.graphs.length) return;
  show("stacks");
  pickTab = tabRow(byId("tabs"), data.graphs.map((one) => `${one.title} (${amount(one.root.v, one.unit)})`),
    (index) => open(data.graphs[index]));
  const keys = data.changes
    ? [["more", "more than in the other recording"], ["less", "less"], ["same", "the same"], ["mark", "marked"]]
    : [["user", "code of the process"], ["kernel", "kernel"], ["mark", "marked"]];
  for (const [kind, text] of keys) make("span", text, byId("legend"), "key " + kind);
  make("span", data.changes ? "A graph lacks the stacks that only the other recording has: look at both."
    : "A box is a function; below it are its callees. Its width is its share.", byId("legend"));
  byId("fold").onchange = draw;
  byId("clear").onclick = () => { byId("search").value = ""; mark(null, null); };
  byId("search").oninput = (event) => {
    const text = event.target.value;
    if (!text) return mark(null, null);
    try {
      const pattern = new RegExp(text, "i");
      mark((name) => pattern.test(name), null);
    } catch {
      // The pattern is incomplete yet.
    }
  };
  const flame = byId("flame");
  flame.onclick = (event) => { if (event.target.box) zoomTo(event.target.box.chain.at(-1)); };
  flame.onmouseover = (event) => { if (event.target.box) byId("detail").textContent = describe(event.target.box); };
  flame.onkeydown = moveInGraph;
  flame.onfocus = () => { if (!cursor) moveTo(boxes[0]); };
  flame.onblur = () => { if (cursor) cursor.element.classList.remove("at"); };
  open(data.graphs[0]);
}

function moveTo(box) {
  if (!box) return;
  if (cursor) cursor.element.classList.remove("at");
  cursor = box;
  box.element.classList.add("at");
  byId("detail").textContent = describe(box);
}

function moveInGraph(event) {
  const at = boxes.indexOf(cursor);
  const row = boxes.filter((box) => cursor && box.level === cursor.level);
  const beside = (step) => row[row.indexOf(cursor) + step];
  switch (event.key) {
    case "ArrowDown": moveTo(boxes.find((box) => box.parent === cursor)); break;
    case "ArrowUp": moveTo(cursor && cursor.parent); break;
    case "ArrowRight": moveTo(beside(1)); break;
    case "ArrowLeft": moveTo(beside(-1)); break;
    case "Enter": if (at >= 0) { zoomTo(cursor.chain.at(-1)); moveTo(boxes[0]); } break;
    case "Escape": zoomTo(firstFork(graph.root)); moveTo(boxes[0]); break;
    default: return;
  }
  event.preventDefault();
}

function describe({ chain }) {
  const node = chain[0], all = Math.max(1, graph.root.v);
  let text = `${chain.map(nameOf).join(" \u203a ")}: ${amount(node.v, graph.unit)}, ${percent(node.v / all)} of all`;
  if (zoom.v < graph.root.v) text += `, ${percent(node.v / Math.max(1, zoom.v))} of what is shown`;
  if (node.o !== undefined) text += `; ${percent(node.o / all)} in the other recording`;
  return text;
}

// Letters of the boxes' font are about so wide.
const LETTER = 7;

function labelOf(chain, width) {
  const share = width > 80 ? percent(chain[0].v / Math.max(1, graph.root.v)) + " " : "";
  const hit = chain.length > 1 && chain.find(isMarked);
  const names = chain.map(nameOf), fits = (text) => (text.length + share.length) * LETTER < width;
  if (chain.length === 1) return share + names[0];
  const whole = names.join(" \u203a "), ends = `${names[0]} \u203a \u2026 \u203a ${names.at(-1)}`;
  if (fits(whole)) return share + whole;
  if (hit) return `${share}\u2026 \u203a ${nameOf(hit)}`;
  return share + (chain.length > 2 && fits(ends) ? ends : `${names[0]} \u203a \u2026`);
}

// For a comparison: red for more, blue for less; the larger the change of the total's share, the stronger.
function changeColor(node) {
  const change = (graph.of_before ? node.o - node.v : node.v - node.o) / Math.max(1, graph.root.v);
  const strength = Math.min(1, Math.sqrt(Math.abs(change)) * 2.5);
  if (Math.abs(change) < 0.002) return "#b9b6b2";
  return `hsl(${change > 0 ? 8 : 215} ${Math.round(35 + 50 * strength)}% ${Math.round(80 - 28 * strength)}%)`;
}

// The path from the root to a node, or nothing.
function pathTo(node, target) {
  if (node === target) return [node];
  for (const child of node.c || []) {
    const path = pathTo(child, target);
    if (path) return [node, ...path];
  }
  return null;
}

const PATH_ENDS = 3;

function drawPath() {
  const path = pathTo(graph.root, zoom) || [graph.root], row = byId("path");
  row.replaceChildren();
  row.hidden = path.length === 1;
  const step = (node) => {
    const button = make("button", node === graph.root ? "all" : nameOf(node), row);
    button.disabled = node === zoom;
    button.onclick = () => zoomTo(node);
  };
  const hidden = isWhole ? 0 : path.length - 2 * PATH_ENDS;
  path.forEach((node, index) => {
    if (hidden > 1 && index > PATH_ENDS && index < PATH_ENDS + hidden) return;
    if (index) make("span", "\u203a", row);
    if (hidden > 1 && index === PATH_ENDS) {
      make("button", `\u2026 ${hidden} more \u2026`, row).onclick = () => { isWhole = true; drawPath(); };
    } else {
      step(node);
    }
  });
}

function draw() {
  if (!graph) return;
  drawPath();
  const flame = byId("flame"), width = flame.clientWidth;
  flame.replaceChildren();
  boxes = [];
  let depth = 0;
  const below = (node, x, w, level, parent) => {
    if (w < 1) return;
    depth = Math.max(depth, level + 1);
    const chain = chainOf(node), last = chain.at(-1);
    const element = make("div", w > 26 ? labelOf(chain, w) : "", flame, node.k ? "k" : "");
    const box = { chain, element, level, parent };
    boxes.push(box);
    element.box = box;
    if (w <= 8) element.classList.add("thin");
    if (chain.some(isMarked)) element.classList.add("hit");
    else if (node.o !== undefined) element.style.background = changeColor(node);
    element.style.left = x + "px";
    element.style.width = w + "px";
    element.style.top = level * ROW + "px";
    element.title = describe(box);
    let at = x;
    for (const child of last.c || []) {
      const part = w * child.v / Math.max(1, last.v);
      below(child, at, part, level + 1, box);
      at += part;
    }
  };
  below(zoom, 0, width, 0, null);
  flame.style.height = depth * ROW + "px";
  byId("matched").textContent = marked ? `marked: ${percent(shareOf(graph, marked))} of all` : "";
}

function showTable(table) {
  if (!table.rows.length) return;
  const details = make("details", null, show("tables"));
  const summary = make("summary", table.title + " ", details);
  make("span", `(${table.rows.length})`, summary);
  const scroll = make("div", null, details, "scroll");
  scroll.tabIndex = 0;
  const body = make("table", null, scroll);
  const head = make("tr", null, make("thead", null, body));
  const rows = make("tbody", null, body);
  const valueIn = (cell) => cell === "-" || cell === "" ? -Infinity : Number(cell);
  const fill = () => {
    rows.replaceChildren();
    for (const row of table.rows) {
      const line = make("tr", null, rows);
      row.forEach((cell, column) => {
        const kind = [table.head[column].number ? "number" : "", cell === "-" ? "unknown" : "", cell.length > 60 ? "wide" : ""];
        make("td", cell === "-" ? "\u2013" : cell, line, kind.join(" ").trim());
      });
    }
  };
  const heads = table.head.map((column, index) => {
    const cell = make("th", null, head, column.number ? "number" : "");
    make("button", column.name, cell).onclick = () => {
      const falls = cell.getAttribute("aria-sort") !== "descending" && column.number
        || cell.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      cell.setAttribute("aria-sort", falls ? "descending" : "ascending");
      const order = falls ? -1 : 1;
      table.rows.sort((a, b) => {
        const [one, two] = [valueIn(a[index]), valueIn(b[index])];
        const byNumber = column.number && !isNaN(one) && !isNaN(two);
        return order * (byNumber ? (one === two ? 0 : one - two) : a[index].localeCompare(b[index]));
      });
      fill();
    };
    return cell;
  });
  fill();
}

const HEAT_ROW = 5;
const HEAT_PARTS = [
  ["CPU", (slot) => slot.samples, (v) => `${v} CPU samples`, [224, 84, 58]],
  ["Blocked", (slot) => slot.blocked_ns, (v) => `blocked ${(v / 1e6).toFixed(1)} ms`, [122, 79, 181]],
  ["Run queue", (slot) => slot.run_queue_ns, (v) => `waiting for a CPU ${(v / 1e6).toFixed(1)} ms`, [176, 125, 28]],
];

// A column is a second, a row a part of it: events once a second form a line, and a stall forms a block.
function showHeat() {
  const slot_ns = data.heat.slot_ns;
  const slots = data.heat.slots.slice(0, Math.max(1, Math.round(data.seconds * 1e9 / slot_ns)));
  const parts = HEAT_PARTS.filter((part) => slots.some((slot) => part[1](slot)));
  if (!parts.length) return;
  const section = show("heat");
  const rows = Math.max(1, Math.round(1e9 / slot_ns)), columns = Math.ceil(slots.length / rows);
  const canvas = byId("heatmap"), detail = byId("heatdetail");
  const cell = Math.max(4, Math.min(100, Math.floor(section.clientWidth / columns)));
  canvas.width = columns * cell;
  canvas.height = rows * HEAT_ROW;
  const context = canvas.getContext("2d");
  const paint = ([, value, , color]) => {
    const most = Math.max(1, ...slots.map(value));
    context.clearRect(0, 0, canvas.width, canvas.height);
    slots.forEach((slot, index) => {
      const x = Math.floor(index / rows) * cell, y = (rows - 1 - index % rows) * HEAT_ROW;
      const strength = value(slot) ? 0.15 + 0.85 * value(slot) / most : 0.05;
      const seen = slot.seen_ns > slot_ns / 10;
      context.fillStyle = seen ? `rgba(${color.join()},${strength})` : "rgba(128,128,128,0.25)";
      context.fillRect(x, y, cell - 1, HEAT_ROW - 1);
    });
  };
  const pick = tabRow(byId("heattabs"), parts.map((part) => part[0]), (index) => paint(parts[index]));
  pick(0);
  canvas.onmousemove = (event) => {
    const index = Math.floor(event.offsetX / cell) * rows + rows - 1 - Math.floor(event.offsetY / HEAT_ROW);
    const slot = slots[index];
    if (!slot) return;
    const at = `${(index * slot_ns / 1e9).toFixed(2)} s: `;
    detail.textContent = at + (slot.seen_ns ? HEAT_PARTS.map((part) => part[2](part[1](slot))).join(", ") : "not observed");
  };
  byId("heatabout").textContent = `Each column is a second of the ${columns}, from below to above in parts of `
    + `${slot_ns / 1e6} ms. The stronger, the more; grey: not observed.`;
  paint(parts[0]);
}

function causes(title, list, isOpen, parent) {
  if (!list.length) return;
  const details = make("details", null, parent);
  details.open = isOpen;
  make("summary", title, details);
  const table = make("table", null, make("div", null, details, "scroll"), "causes");
  for (const [cause, why] of list) {
    const row = make("tr", null, table);
    make("td", cause, row);
    make("td", why, row);
  }
}

function showRest() {
  if (data.unseen.length || data.ruled_out.length) {
    const section = show("ruled");
    causes("Not seen, so not ruled out", data.unseen, true, section);
    if (data.to_see_more) make("p", data.to_see_more, section, "small");
    causes(`Ruled out (${data.ruled_out.length})`, data.ruled_out, false, section);
  }
  make("p", data.cost, byId("health"));
  for (const note of data.notes) make("p", "Note: " + note, byId("health"));
}

if (data.changes) {
  showChanges();
} else {
  showHead();
  showFindings();
  showChains();
  showHeat();
}
showGraphs();
data.tables.forEach(showTable);
if (!data.changes) {
  showRest();
  const first = data.findings.find((finding) => finding.state);
  if (first) markFinding(first);
}
let drawnWidth = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== drawnWidth) draw();
  drawnWidth = innerWidth;
});
