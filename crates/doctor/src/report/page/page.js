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
const percent = (share) => (share * 100).toFixed(share < 0.1 ? 1 : 0) + "%";

// For a comparison: both sentences, and each change.
function showChanges() {
  byId("sentence").textContent = data.after;
  byId("about").textContent = data.about;
  document.title = data.after;
  make("p", "Before: " + data.before, byId("findings"));
  byId("legend").textContent = "Red: more after than before. Blue: less. A graph lacks the stacks that only the other recording has: look at both.";
  if (!data.changes.length) make("p", "No finding appeared, is gone, or changed by more than the sampling error.", byId("findings"));
  data.changes.forEach((change, index) => {
    const card = make("div", null, byId("findings"), "finding");
    make("h3", `${index + 1}. ${change.fate}: ${change.title}`, card);
    make("div", change.detail, card, "small");
  });
}

function showHead() {
  const d = data.diagnosis, t = data.target;
  byId("sentence").textContent = d.sentence;
  document.title = t.name + ": " + d.sentence;
  byId("about").textContent = `${t.name} (pid ${t.pid}), ${data.seconds.toFixed(1)} s, ${data.tier}, ${data.made_by}`;
  const c = d.critical;
  if (!c) return;
  const parts = [["on a CPU", c.cpu_ns, "#b5483a"], ["waiting for a CPU", c.run_queue_ns, "#b07d1c"],
    ["blocked", c.blocked_ns, "#7a4fb5"], ["waiting for work", c.idle_ns, "#6b7780"]];
  for (const [name, ns, color] of parts) {
    const share = ns / c.window_ns;
    if (share < 0.002) continue;
    const part = make("div", share < 0.1 ? "" : `${name} ${percent(share)}`, byId("budget"));
    part.style.flex = `${share} 0 0`;
    part.style.background = color;
    part.title = `${c.name} (${c.tid}): ${name} ${percent(share)}`;
  }
}

function showFindings() {
  data.diagnosis.findings.forEach((finding, index) => {
    const card = make("div", null, byId("findings"), "finding");
    make("h3", `${index + 1}. ${finding.title}`, card);
    const gain = finding.ceiling <= 1 ? "about this report" : finding.share === null ? "felt by clients" : `at most x${finding.ceiling.toFixed(2)} if fixed`;
    const each = finding.per_request_us === null ? "" : `${finding.per_request_us.toFixed(2)} us a request; `;
    const of = finding.share_error === null ? "" : `${(finding.share * 100).toFixed(1)}% ±${(finding.share_error * 100).toFixed(1)}% of its time; `;
    make("div", `${finding.rule}; ${of}${each}${gain}; confidence ${Math.round(finding.confidence * 100)}%`, card, "small");
    const list = make("ul", null, card);
    for (const evidence of finding.evidence) {
      const item = make("li", evidence.what + " ", list);
      make("code", evidence.command, item);
    }
    make("div", finding.next_step, card);
    if (finding.frames.length) {
      card.title = "Click to mark its functions in the graph";
      card.onclick = () => {
        const names = new Set(finding.frames);
        mark((name) => names.has(name));
        byId("flame").scrollIntoView({ behavior: "smooth", block: "center" });
      };
    }
  });
}

const amount = (value, unit) =>
  unit !== "us" ? `${value.toLocaleString()} ${unit}` : value < 1e6 ? `${(value / 1e3).toFixed(1)} ms` : `${(value / 1e6).toFixed(2)} s`;

let graph = data.graphs.find((one) => one.root.v) || data.graphs[0], zoom = graph.root, marked = null;

function showTabs() {
  for (const one of data.graphs) {
    const button = make("button", `${one.title} (${amount(one.root.v, one.unit)})`, byId("tabs"));
    button.disabled = !one.root.v;
    button.onclick = () => { graph = one; zoom = one.root; draw(); };
    one.button = button;
  }
  byId("reset").onclick = () => { zoom = graph.root; draw(); };
  byId("search").oninput = (event) => {
    const text = event.target.value;
    if (!text) return mark(null);
    try {
      const pattern = new RegExp(text, "i");
      mark((name) => pattern.test(name));
    } catch {
      // The pattern is incomplete yet.
    }
  };
}

function mark(test) {
  marked = test;
  draw();
}

// The path from the root to a node: its nodes are drawn over the whole width.
function pathTo(node, target) {
  if (node === target) return [node];
  for (const child of node.c || []) {
    const path = pathTo(child, target);
    if (path) return [node, ...path];
  }
  return null;
}

function matchedValue(node) {
  if (marked(data.names[node.n])) return node.v;
  return (node.c || []).reduce((sum, child) => sum + matchedValue(child), 0);
}

const ROW = 18;

// For a comparison: red for more, blue for less; the larger the change of the total's share, the stronger.
function changeColor(node) {
  const change = (graph.of_before ? node.o - node.v : node.v - node.o) / Math.max(1, graph.root.v), strength = Math.min(1, Math.sqrt(Math.abs(change)) * 2.5);
  if (Math.abs(change) < 0.002) return "#b9b6b2";
  return `hsl(${change > 0 ? 8 : 215} ${Math.round(35 + 50 * strength)}% ${Math.round(80 - 28 * strength)}%)`;
}

function draw() {
  for (const one of data.graphs) one.button.className = one === graph ? "on" : "";
  const flame = byId("flame");
  flame.replaceChildren();
  const width = flame.clientWidth;
  let depth = 0;
  const box = (node, x, w, level, dim) => {
    if (w < 1) return;
    depth = Math.max(depth, level + 1);
    const name = data.names[node.n];
    const element = make("div", w > 30 ? name : "", flame, node.k ? "k" : "");
    if (node.o !== undefined) element.style.background = changeColor(node);
    if (marked && marked(name)) {
      element.className = "hit";
      element.style.background = "";
    }
    if (dim) element.classList.add("dim");
    element.style.left = x + "px";
    element.style.width = w + "px";
    element.style.top = level * ROW + "px";
    const all = Math.max(1, graph.root.v);
    let text = `${name}: ${amount(node.v, graph.unit)}, ${percent(node.v / all)} of all`;
    if (node.o !== undefined) text += `; ${percent(node.o / all)} in the other recording`;
    element.title = text;
    element.onmouseenter = () => { byId("detail").textContent = text; };
    element.onclick = () => { zoom = node; draw(); };
  };
  const path = pathTo(graph.root, zoom) || [graph.root];
  path.forEach((node, level) => box(node, 0, width, level, node !== zoom));
  const below = (node, x, w, level) => {
    let at = x;
    for (const child of node.c || []) {
      const part = w * child.v / Math.max(1, node.v);
      box(child, at, part, level, false);
      if (part >= 1) below(child, at, part, level + 1);
      at += part;
    }
  };
  below(zoom, 0, width, path.length);
  flame.style.height = depth * ROW + "px";
  byId("matched").textContent = marked ? `marked: ${percent(matchedValue(graph.root) / Math.max(1, graph.root.v))}` : "";
}

function showTable(title, table) {
  if (!table.rows.length) return;
  const details = make("details", null, byId("tables"));
  make("summary", `${title} (${table.rows.length})`, details);
  const body = make("table", null, make("div", null, details, "scroll"));
  const head = make("tr", null, make("thead", null, body));
  const rows = make("tbody", null, body);
  const isNumber = (cell) => cell !== "" && !isNaN(cell);
  const fill = () => {
    rows.replaceChildren();
    for (const row of table.rows) {
      const line = make("tr", null, rows);
      for (const cell of row) make("td", cell, line, isNumber(cell) ? "number" : "");
    }
  };
  table.head.forEach((name, column) => {
    make("th", name, head).onclick = () => {
      table.rows.sort((a, b) => isNumber(a[column]) || isNumber(b[column])
        ? Number(b[column]) - Number(a[column]) : a[column].localeCompare(b[column]));
      fill();
    };
  });
  fill();
}

const HEAT_ROW = 9;
const HEAT_PARTS = [
  ["CPU", (slot) => slot.samples, (v) => `${v} CPU samples`, [224, 84, 58]],
  ["Blocked", (slot) => slot.blocked_ns, (v) => `blocked ${(v / 1e6).toFixed(1)} ms`, [122, 79, 181]],
  ["Run queue", (slot) => slot.run_queue_ns, (v) => `waiting for a CPU ${(v / 1e6).toFixed(1)} ms`, [176, 125, 28]],
];

// A column is a second, a row a part of it: events once a second form a line, and a stall forms a block.
function showHeat() {
  const slot_ns = data.heat.slot_ns;
  const slots = data.heat.slots.slice(0, Math.max(1, Math.round(data.seconds * 1e9 / slot_ns)));
  if (!data.heat.slots.length) return;
  const section = byId("heat");
  section.hidden = false;
  const rows = Math.max(1, Math.round(1e9 / slot_ns)), columns = Math.ceil(slots.length / rows);
  const canvas = byId("heatmap"), detail = byId("heatdetail");
  const cell = Math.max(4, Math.min(60, Math.floor((section.clientWidth - 60) / columns)));
  canvas.width = columns * cell;
  canvas.height = rows * HEAT_ROW;
  const context = canvas.getContext("2d");
  let shown = HEAT_PARTS[0];
  const paint = () => {
    const [, value, , color] = shown;
    const most = Math.max(1, ...slots.map(value));
    context.clearRect(0, 0, canvas.width, canvas.height);
    slots.forEach((slot, index) => {
      const x = Math.floor(index / rows) * cell, y = (rows - 1 - index % rows) * HEAT_ROW;
      const seen = slot.seen_ns > slot_ns / 10;
      context.fillStyle = seen ? `rgba(${color.join()},${value(slot) ? 0.12 + 0.88 * value(slot) / most : 0.03})` : "rgba(128,128,128,0.25)";
      context.fillRect(x, y, cell - 1, HEAT_ROW - 1);
    });
    buttons.forEach((button, index) => { button.className = HEAT_PARTS[index] === shown ? "on" : ""; });
  };
  const buttons = HEAT_PARTS.map((part) => {
    const button = make("button", part[0], byId("heattabs"));
    button.disabled = !slots.some(part[1]);
    button.onclick = () => { shown = part; paint(); };
    return button;
  });
  canvas.onmousemove = (event) => {
    const index = Math.floor(event.offsetX / cell) * rows + rows - 1 - Math.floor(event.offsetY / HEAT_ROW);
    const slot = slots[index];
    if (!slot) return;
    const at = `${(index * slot_ns / 1e9).toFixed(2)} s: `;
    detail.textContent = at + (slot.seen_ns ? HEAT_PARTS.map((part) => part[2](part[1](slot))).join(", ") : "not observed");
  };
  byId("heatabout").textContent =
    `From left to right ${columns} seconds, from below to above the ${rows} parts of each, ${slot_ns / 1e6} ms. Grey: not observed.`;
  paint();
}

function showRest() {
  const details = make("details", null, byId("ruled"));
  make("summary", "Ruled out, and not seen", details);
  const list = make("ul", null, details);
  for (const ruled of data.diagnosis.ruled_out) {
    make("li", `${ruled.rule}${ruled.unseen ? " (not seen)" : ""}: ${ruled.why}`, list);
  }
  const h = data.health, share = (ns) => percent(ns / 1e9 / data.seconds);
  let text = `The doctor took ${share(h.own_cpu_ns)} of a CPU`;
  if (h.kernel_runs) text += ` and ${share(h.kernel_ns)} inside the kernel, by the kernel's count`;
  if (h.stacks) text += `; ${percent(h.stacks_complete / h.stacks)} of ${h.stacks} stacks are complete`;
  if (h.duty < 0.999) text += `; on for ${percent(h.duty)} of the time, counts and times of calls are scaled${h.scale_error === null ? "" : ` (±${percent(h.scale_error)})`}`;
  make("p", text + ".", byId("health"));
  for (const note of h.notes) make("p", note, byId("health"));
}

if (data.changes) {
  showChanges();
} else {
  showHead();
  showFindings();
  showHeat();
}
showTabs();
data.tables.forEach((table) => showTable(table.title, table));
if (!data.changes) showRest();
draw();
addEventListener("resize", draw);
