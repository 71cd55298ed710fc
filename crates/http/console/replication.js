// Replication: INFO replication as a picture and a table.

import * as api from "./api.js";
import { h, panel, replace, svg, table, viewHead } from "./dom.js";
import { bytes, count, DASH, parseInfo, parsePairs, plural, seconds } from "./format.js";
import { every, loading, problem } from "./state.js";

const BOX = { width: 220, height: 66, gap: 90, space: 14 };

export function replication(main) {
  const body = h("div", {}, loading());
  main.append(viewHead("Replication"), body);

  async function load() {
    try {
      draw(parseInfo(await api.command(["INFO", "replication"])));
    } catch (error) {
      replace(body, problem(error));
    }
  }

  function draw(info) {
    const replicas = replicasOf(info);
    const isReplica = info.role === "slave";
    const link = isReplica && info.master_link_status === "up";
    const facts = [
      ["Role", isReplica ? "replica" : "primary"],
      ["Offset", count(Number(info.master_repl_offset))],
      ["Replication id", info.master_replid],
      ["Backlog", info.repl_backlog_active === "1"
        ? `${bytes(Number(info.repl_backlog_histlen))} of ${bytes(Number(info.repl_backlog_size))}` : "not in use"],
      ...(isReplica ? [["Primary", `${info.master_host}:${info.master_port}`], ["Link", link ? "up" : downText(info)],
        ["Last data", `${seconds(Number(info.master_last_io_seconds_ago))} ago`],
        ["Full sync", info.master_sync_in_progress === "1" ? "in progress" : "none"],
        ["Read only", info.slave_read_only === "1" ? "yes" : "no"]] : []),
      ["Failover", info.master_failover_state ?? DASH],
    ];
    replace(body,
      panel("Topology", null, h("div", { class: "scroll pad", tabindex: "0", role: "region", "aria-label": "Topology" },
        picture(info, replicas, isReplica, link))),
      panel("This server", null, h("div", { class: "body" },
        h("dl", { class: "facts" }, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value ?? DASH)])))),
      replicas.length ? panel(plural(replicas.length, "replica"), null, replicaTable(replicas)) : null);
  }

  return every(2000, load);
}

function downText(info) {
  const since = Number(info.master_link_down_since_seconds);
  return since >= 0 ? `down for ${seconds(since)}` : "down";
}

function replicasOf(info) {
  const offset = Number(info.master_repl_offset ?? 0);
  return Object.entries(info).filter(([name]) => /^slave\d+$/.test(name)).map(([, text]) => {
    const one = parsePairs(text, ",");
    return { address: `${one.ip}:${one.port}`, state: one.state, offset: Number(one.offset),
      lagBytes: Math.max(0, offset - Number(one.offset)), lagSeconds: Number(one.lag), type: one.type ?? null };
  });
}

function replicaTable(replicas) {
  return table([
    { name: "Replica", cell: (one) => one.address, cls: "mono", head: true, sort: (one) => one.address },
    { name: "State", cell: (one) => h("span", { class: one.state === "online" ? "pill ok" : "pill warn" }, one.state) },
    { name: "Offset", num: true, cell: (one) => count(one.offset), sort: (one) => one.offset },
    { name: "Behind", num: true, cell: (one) => bytes(one.lagBytes), sort: (one) => one.lagBytes },
    { name: "Last acknowledgement", num: true, cell: (one) => `${seconds(one.lagSeconds)} ago`, sort: (one) => one.lagSeconds },
    { name: "Channel", cell: (one) => one.type },
  ], replicas, { label: "Replicas" });
}

function picture(info, replicas, isReplica, link) {
  const here = { title: "This server", text: isReplica ? "replica" : "primary", more: `offset ${count(Number(info.master_repl_offset))}`,
    good: true, isHere: true };
  const left = isReplica ? [{ title: `${info.master_host}:${info.master_port}`, text: "primary",
    more: link ? "link up" : "link down", good: link }] : [];
  const right = replicas.map((one) => ({ title: one.address, text: `replica, ${one.state}`,
    more: `${bytes(one.lagBytes)} behind, ${seconds(one.lagSeconds)}`, good: one.state === "online" }));
  const columns = [left, [here], right].filter((column) => column.length);
  const rows = Math.max(...columns.map((column) => column.length));
  const height = rows * (BOX.height + BOX.space) + 4;
  const width = columns.length * BOX.width + (columns.length - 1) * BOX.gap + 4;
  const place = (column, at, of) => ({ x: 2 + column * (BOX.width + BOX.gap),
    y: 2 + (height - of * (BOX.height + BOX.space)) / 2 + at * (BOX.height + BOX.space) });
  const parts = [];
  columns.forEach((column, number) => column.forEach((node, at) => {
    const { x, y } = place(number, at, column.length);
    if (number > 0) {
      columns[number - 1].forEach((other, from) => {
        const start = place(number - 1, from, columns[number - 1].length);
        parts.push(wire(start.x + BOX.width, start.y + BOX.height / 2, x, y + BOX.height / 2,
          node.isHere ? link : node.good));
      });
    }
    parts.push(box(node, x, y));
  }));
  const label = [...left, here, ...right].map((node) => `${node.title}: ${node.text}, ${node.more}`).join("; ");
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, parts);
}

function wire(x1, y1, x2, y2, good) {
  const middle = (x1 + x2) / 2;
  const path = svg("path", { d: `M${x1} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2 - 7} ${y2}`, fill: "none",
    "stroke-width": 2, "stroke-dasharray": good ? null : "5 4" });
  const tip = svg("path", { d: `M${x2 - 9} ${y2 - 5} L${x2 - 1} ${y2} L${x2 - 9} ${y2 + 5} Z` });
  path.style.stroke = tip.style.fill = `var(${good ? "--line-strong" : "--danger"})`;
  return svg("g", {}, path, tip);
}

function box(node, x, y) {
  const rect = svg("rect", { x, y, width: BOX.width, height: BOX.height, rx: 6, "stroke-width": node.isHere ? 2 : 1 });
  rect.style.fill = node.isHere ? "var(--tint)" : "var(--surface)";
  rect.style.stroke = node.good ? (node.isHere ? "var(--accent)" : "var(--line-strong)") : "var(--danger)";
  const line = (text, dy, size, weight, colour) => {
    const element = svg("text", { x: x + 12, y: y + dy, "font-size": size, "font-weight": weight }, text);
    if (colour) element.style.fill = `var(${colour})`;
    return element;
  };
  return svg("g", {}, rect, line(node.title, 21, 13, 600), line(node.text, 39, 12, 400, "--muted"),
    line(node.more, 56, 12, 400, node.good ? "--muted" : "--danger"));
}
