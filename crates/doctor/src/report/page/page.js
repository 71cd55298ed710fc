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
    const part = make("div", `${name} ${percent(share)}`, byId("budget"));
    part.style.flex = `${share} 0 0`;
    part.style.background = color;
    part.title = `${c.name} (${c.tid}): ${name} ${percent(share)}`;
  }
}

function showFindings() {
  data.diagnosis.findings.forEach((finding, index) => {
    const card = make("div", null, byId("findings"), "finding");
    make("h3", `${index + 1}. ${finding.title}`, card);
    const gain = finding.share === null ? "felt by clients" : `at most x${finding.ceiling.toFixed(2)} if mended`;
    make("div", `${finding.rule}; ${gain}; confidence ${Math.round(finding.confidence * 100)}%`, card, "small");
    const list = make("ul", null, card);
    for (const evidence of finding.evidence) {
      const item = make("li", evidence.what + " ", list);
      if (evidence.command) make("code", evidence.command, item);
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

let graph = data.graphs[0], zoom = graph.root, marked = null;

function showTabs() {
  for (const one of data.graphs) {
    const button = make("button", `${one.title} (${one.root.v.toLocaleString()} ${one.unit})`, byId("tabs"));
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
      // The pattern is not finished yet.
    }
  };
}

function mark(test) {
  marked = test;
  draw();
}

// Path from the root to a node: those are drawn over the whole width.
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
    if (marked && marked(name)) element.className = "hit";
    if (dim) element.classList.add("dim");
    element.style.left = x + "px";
    element.style.width = w + "px";
    element.style.top = level * ROW + "px";
    const text = `${name}: ${node.v.toLocaleString()} ${graph.unit}, ${percent(node.v / Math.max(1, graph.root.v))} of all`;
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

function showRest() {
  showTable("Threads", data.threads);
  showTable("System calls by descriptor and role", data.calls);
  showTable("Locks", data.locks);
  showTable("Sockets", data.sockets);
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
  if (h.duty < 0.999) text += `; on for ${percent(h.duty)} of the time, figures are scaled`;
  make("p", text + ".", byId("health"));
  for (const note of h.notes) make("p", note, byId("health"));
}

showHead();
showFindings();
showTabs();
showRest();
draw();
addEventListener("resize", draw);
