// The overview: charts of the server over any span, its events, and the findings about them.

import * as api from "./api.js";
import { Chart } from "./charts.js";
import { doctorPanel } from "./doctor.js";
import { h, replace, say } from "./dom.js";
import { brief, bytes, clock, count, DASH, moment, parseInfo, parsePairs, percent, us } from "./format.js";
import { every, problem } from "./state.js";

const SPANS = [["5 min", 5 * 60e3], ["1 h", 3600e3], ["24 h", 24 * 3600e3]];
const AROUND_MS = 10e3;
const POINTS = 600;
const NEAR_PIXELS = 8;

// The stages of a worker, in the order of the stack.
const STAGES = [
  ["Read", ["accept", "read"]], ["Parse", ["parse"]], ["Wait for locks", ["lock_wait"]], ["Execute", ["execute"]],
  ["Write", ["write"]], ["Upkeep", ["expire", "evict", "purge", "compact"]], ["Other", null],
];

// Families of commands, in the order of the stack.
const FAMILIES = ["string", "hash", "list", "set", "zset", "stream", null];

const rate = (name, label, more) => ({ label, value: (row) => perSecond(row, name), needs: name, ...more });
const gauge = (name, label, more) => ({ label, value: (row) => row.get(name), needs: name, ...more });
const nanos = (name, label) => ({ label, needs: name,
  value: (row) => { const value = row.get(name); return value === null ? null : value / 1000; } });
const share = (name, label) => ({ label, needs: name,
  value: (row) => { const part = row.get(name); return part === null ? null : part / row.covered / 10; } });

const perSecond = (row, name) => {
  const value = row.get(name);
  return value === null || !row.covered ? null : value * 1000 / row.covered;
};

const CHARTS = [
  { title: "Commands", unit: "per second", format: brief, series: [rate("commands", "Commands"),
    rate("errors", "Errors")] },
  { title: "Time of a command", unit: "execution, without waiting", format: us,
    series: [nanos("all.p50_ns", "p50"), nanos("all.p99_ns", "p99")] },
  { title: "CPU of workers by stage", unit: "100 % is a core", format: percent, stacked: true, least: 5,
    series: STAGES.map(([label, names]) => ({ label, value: (row) => row.stage(names), needs: "worker." })) },
  { title: "Commands by family", unit: "per second", format: brief, stacked: true, series: FAMILIES.map((family) =>
    ({ label: family ?? "others", value: (row) => row.family(family), needs: "family." })) },
  { title: "Memory", unit: "", format: bytes, isBytes: true, least: 1 << 20, series: [gauge("used_bytes", "Used"),
    gauge("resident_bytes", "Resident"), { label: "maxmemory", dash: [4, 4], needs: "maxmemory_bytes",
      value: (row) => row.get("maxmemory_bytes") || null }] },
  { title: "Network", unit: "per second", format: bytes, isBytes: true, least: 1024,
    series: [rate("bytes_in", "In"), rate("bytes_out", "Out")] },
  { title: "Longest waits", unit: "turn of a worker, sync of the log", format: us, least: 100,
    series: [gauge("turn_max_us", "Turn"), gauge("sync_max_us", "Sync")] },
  { title: "Clients", unit: "", format: brief, least: 5,
    series: [gauge("clients", "Connected"), gauge("blocked_clients", "Blocked")] },
  { title: "Lag", unit: "bytes to write or send", format: bytes, isBytes: true, least: 1024,
    series: [gauge("replica_lag_bytes", "Replicas"), gauge("journal_unread_bytes", "Journal")] },
  { title: "Keys looked up and removed", unit: "per second", format: brief, series: [rate("hits", "Hits"),
    rate("misses", "Misses"), rate("expired", "Expired"), rate("evicted", "Evicted")] },
  { title: "Waiting for the machine", unit: "part of the time", format: percent, least: 1,
    series: [share("run_queue_us", "Run queue"), share("throttled_us", "Throttled"),
      share("pressure_memory_us", "Memory"), share("pressure_io_us", "I/O")] },
];

/** Rows of a series, by the names of their columns. */
class Rows {
  constructor(reply) {
    this.at = new Map(reply.columns.map((column, number) => [column.name, number + 2]));
    this.rows = reply.rows;
    this.stages = reply.columns.map((column, number) => {
      const found = column.name.match(/^worker\.\d+\.(.+)$/);
      return found ? [found[1], number + 2] : null;
    }).filter((found) => found && found[0] !== "idle");
    this.calls = reply.columns.map((column, number) => [column.name.match(/^family\.(.+)\.calls$/)?.[1], number + 2])
      .filter(([family]) => family);
    this.known = new Set(STAGES.flatMap(([, names]) => names ?? []));
  }

  has(name) {
    if (name === "worker.") return this.stages.length > 0;
    return name === "family." ? this.calls.length > 0 : this.at.has(name);
  }

  row(cells) {
    return {
      covered: cells[1],
      get: (name) => { const at = this.at.get(name); return at === undefined ? null : cells[at] ?? null; },
      stage: (names) => {
        let sum = 0;
        for (const [stage, at] of this.stages) {
          if (names ? names.includes(stage) : !this.known.has(stage)) sum += cells[at] ?? 0;
        }
        return cells[1] ? sum / cells[1] / 10 : null;
      },
      family: (wanted) => {
        let sum = 0;
        for (const [family, at] of this.calls) {
          if (wanted ? family === wanted : !FAMILIES.includes(family)) sum += cells[at] ?? 0;
        }
        return cells[1] ? sum * 1000 / cells[1] : null;
      },
    };
  }
}

/** Figures of INFO over time, for a server that keeps no history. */
class OwnHistory {
  constructor() {
    this.rows = [];
    this.last = null;
  }

  add(info) {
    const now = Date.now(), number = (name) => Number(info[name] ?? NaN);
    const sums = ["total_commands_processed", "total_error_replies", "total_net_input_bytes",
      "total_net_output_bytes", "keyspace_hits", "keyspace_misses", "expired_keys", "evicted_keys"].map(number);
    if (this.last) {
      const gauges = ["connected_clients", "blocked_clients", "used_memory", "used_memory_rss", "maxmemory"].map(number);
      this.rows.push([now, now - this.last.now, ...sums.map((sum, at) => Math.max(0, sum - this.last.sums[at])), ...gauges]);
      if (this.rows.length > 3600) this.rows.shift();
    }
    this.last = { now, sums };
  }

  reply(from, to) {
    const names = ["commands", "errors", "bytes_in", "bytes_out", "hits", "misses", "expired", "evicted", "clients",
      "blocked_clients", "used_bytes", "resident_bytes", "maxmemory_bytes"];
    return { columns: names.map((name) => ({ name })), rows: this.rows.filter(([at]) => at >= from && at <= to) };
  }
}

export function overview(main) {
  // The span ends now and has this length, or is fixed.
  const state = { length: SPANS[0][1], fixed: null, earlier: [], events: [], stopped: false };
  const own = new OwnHistory();
  const tiles = h("div", { class: "tiles", id: "tiles" });
  const trouble = h("div", { class: "trouble" });
  const findings = h("section", { class: "panel", id: "findings", "aria-live": "polite" });
  const eventList = h("ol", { class: "events" });
  const eventPanel = h("section", { class: "panel" }, h("header", {}, h("h2", {}, "Events")), eventList);
  const doctor = doctorPanel();
  const charts = CHARTS.map((spec) => new Chart(spec, {
    onselect: (from, to) => show(from, to),
    onclick: (ms, msPerPixel) => around(ms, msPerPixel),
    markers: () => state.events,
  }));
  const grid = h("div", { class: "charts" }, charts.map((chart) => chart.element));
  charts.forEach((chart) => { chart.element.hidden = true; });
  const buttons = SPANS.map(([label, ms]) => h("button", { type: "button", class: "small",
    onclick: () => live(ms) }, label));
  const back = h("button", { type: "button", class: "small", onclick: goBack }, "Back");
  const [earlier, later] = [["\u2190", -0.5, "Earlier"], ["\u2192", 0.5, "Later"]].map(([sign, part, label]) =>
    h("button", { type: "button", class: "small", "aria-label": label, onclick: () => move(part) }, sign));
  const from = h("input", { type: "datetime-local", step: "1", "aria-label": "From" });
  const to = h("input", { type: "datetime-local", step: "1", "aria-label": "To" });
  const custom = h("form", { class: "spans", hidden: true, onsubmit: (event) => {
    event.preventDefault();
    const [a, b] = [new Date(from.value).getTime(), new Date(to.value).getTime()];
    if (a < b) show(a, b); else say("The start has to be before the end.");
  } }, from, "to", to, h("button", { class: "small" }, "Show"));
  const customButton = h("button", { type: "button", class: "small", "aria-expanded": "false", onclick: () => {
    custom.hidden = !custom.hidden;
    customButton.setAttribute("aria-expanded", String(!custom.hidden));
    const [a, b] = bounds();
    [from.value, to.value] = [a, b].map(local);
  } }, "Custom");
  const title = h("span", { class: "muted", id: "span" });
  main.append(h("div", { class: "head" }, h("h1", {}, "Overview"), title,
    h("div", { class: "spans push" }, back, earlier, later, buttons, customButton), custom),
  tiles, trouble, h("div", { class: "overview" }, grid,
    h("aside", { "aria-label": "Findings and events" }, findings, eventPanel, doctor.element)));

  function bounds() {
    if (state.fixed) return state.fixed;
    const now = Date.now();
    return [now - state.length, now];
  }

  function remember() {
    state.earlier.push(state.fixed ?? state.length);
    if (state.earlier.length > 50) state.earlier.shift();
  }

  function live(ms) {
    remember();
    [state.length, state.fixed] = [ms, null];
    refresh();
  }

  function show(a, b) {
    const least = 1000;
    const middle = (a + b) / 2;
    remember();
    state.fixed = b - a < least ? [middle - least / 2, middle + least / 2].map(Math.round) : [a, b].map(Math.round);
    refresh();
  }

  function goBack() {
    const earlier = state.earlier.pop();
    if (earlier === undefined) return;
    if (Array.isArray(earlier)) state.fixed = earlier; else [state.length, state.fixed] = [earlier, null];
    refresh();
  }

  function move(part) {
    const [a, b] = bounds();
    const step = (b - a) * part;
    if (b + step >= Date.now()) live(b - a); else show(a + step, b + step);
  }

  function around(ms, msPerPixel) {
    const near = state.events.filter((event) => Math.abs(event.at - ms) <= NEAR_PIXELS * msPerPixel)
      .sort((one, other) => Math.abs(one.at - ms) - Math.abs(other.at - ms))[0];
    const at = near?.at ?? ms;
    show(at - AROUND_MS, at + AROUND_MS);
  }

  function showSpan() {
    const [a, b] = bounds();
    const text = state.fixed ? `${moment(a)} to ${clock(b, b - a < 5e3)}` : "Live";
    title.textContent = text;
    back.disabled = !state.earlier.length;
    buttons.forEach((button, at) =>
      button.setAttribute("aria-pressed", String(!state.fixed && state.length === SPANS[at][1])));
  }

  let controller = null, turn = 0;
  const drawn = new Map();

  async function refresh() {
    controller?.abort();
    controller = new AbortController();
    const { signal } = controller, mine = ++turn;
    showSpan();
    const [a, b] = bounds();
    const isNow = !state.fixed;
    const settled = await Promise.allSettled([
      api.series(Math.round(a), Math.round(b), POINTS, signal),
      api.command(["INFO", "clients", "memory", "stats", "keyspace"], { signal }).then(parseInfo),
      isNow && mine % 2 === 0 && state.events.length ? null : api.events(Math.round(a), Math.round(b), signal),
      isNow && mine % 3 !== 1 && mine > 1 ? null : api.findings(Math.round(a), Math.round(b), signal),
    ]);
    if (state.stopped || mine !== turn) return;
    const [series, info, events, found] = settled.map((one) => one.status === "fulfilled" ? one.value : null);
    if (info) own.add(info);
    const [failed, , , hidden] = settled.map((one) => one.reason);
    replace(trouble, failed ? problem(failed) : null);
    if (series) drawCharts(series.columns.length ? series : own.reply(a, isNow ? Infinity : b), series, a, b);
    tiles.hidden = !series && !info;
    if (!tiles.hidden) drawTiles(series, info ?? {});
    if (events) ifChanged(eventPanel, events.events, drawEvents);
    if (found) ifChanged(findings, found, drawFindings);
    else if (hidden) replace(findings, h("header", {}, h("h2", {}, "Findings")), h("div", { class: "body" }, problem(hidden)));
    eventPanel.hidden = settled[2].status === "rejected";
  }

  /** Leaves an unchanged list as it is, with the focus of the operator. */
  function ifChanged(element, value, draw) {
    const text = JSON.stringify(value, (name, of) => name === "from" || name === "to" ? undefined : of);
    if (drawn.get(element) === text) return;
    drawn.set(element, text);
    draw(value);
  }

  function drawCharts(reply, kept, a, b) {
    const rows = new Rows(reply), parsed = reply.rows.map((cells) => rows.row(cells));
    const times = reply.rows.map((cells) => cells[0]);
    CHARTS.forEach((spec, number) => {
      const chart = charts[number];
      chart.element.hidden = !spec.series.some((series) => rows.has(series.needs));
      if (chart.element.hidden) return;
      chart.set(times, spec.series.map((series) => parsed.map(series.value)), a, b);
    });
    if (kept.columns.length && kept.kept_from > a + 2000 && !reply.rows.length) {
      title.textContent += ` \u2013 history is kept from ${moment(kept.kept_from)}`;
    }
  }

  function drawTiles(series, info) {
    const reply = series?.columns.length ? series : own.reply(0, Infinity);
    const rows = new Rows(reply);
    // At the end of a fixed span, its mean; live, the last second.
    const cells = state.fixed ? reply.rows : reply.rows.filter(([at]) => at > (reply.rows.at(-1)?.[0] ?? 0) - 1000);
    const parsed = cells.map((row) => rows.row(row));
    const sum = (value) => parsed.reduce((all, row) => all + (value(row) ?? 0), 0);
    const covered = sum((row) => row.covered);
    const mean = (name) => rows.has(name) && covered ? sum((row) => row.get(name)) * 1000 / covered : null;
    const top = (name) => rows.has(name) && parsed.length
      ? Math.max(...parsed.map((row) => row.get(name) ?? -1)) : null;
    const last = (name) => [...parsed].reverse().map((row) => row.get(name)).find((value) => value !== null) ?? null;
    const number = (name) => info[name] === undefined ? null : Number(info[name]);
    const p99 = top("all.p99_ns");
    const busy = rows.has("worker.") && covered ? STAGES.reduce((all, [, names]) =>
      all + sum((row) => (row.stage(names) ?? 0) * row.covered), 0) / covered : null;
    const workers = new Set(reply.columns.map((column) => column.name.match(/^worker\.(\d+)\./)?.[1])
      .filter(Boolean)).size;
    const used = last("used_bytes") ?? number("used_memory"), max = last("maxmemory_bytes") ?? number("maxmemory");
    const keyCount = last("keys") ?? Object.entries(info).filter(([name]) => /^db\d+$/.test(name))
      .reduce((all, [, text]) => all + Number(parsePairs(text, ",").keys ?? 0), 0);
    const errors = mean("errors");
    const tile = (id, name, value, more) => h("div", { class: "tile", id: `tile-${id}` },
      h("div", { class: "name" }, name), h("div", { class: "value" }, value), h("div", { class: "more" }, more ?? "\u00a0"));
    replace(tiles,
      tile("commands", "Commands/s", brief(round(mean("commands") ?? number("instantaneous_ops_per_sec"))),
        errors === null ? null : `${brief(round(errors))} errors/s`),
      p99 === null ? null : tile("p99", "p99 of a command", p99 < 0 ? DASH : us(p99 / 1000),
        last("all.p50_ns") === null ? null : `p50 ${us(last("all.p50_ns") / 1000)}`),
      busy === null ? null : tile("cpu", "CPU of workers", percent(busy), `${workers} workers`),
      tile("memory", "Memory used", bytes(used), max ? `${percent(100 * used / max)} of ${bytes(max)}` : "no maxmemory"),
      tile("clients", "Clients", count(last("clients") ?? number("connected_clients")),
        `${count(last("blocked_clients") ?? number("blocked_clients"))} blocked`),
      tile("keys", "Keys", brief(keyCount), hitRate(mean("hits"), mean("misses"))),
      tile("network", "Network out", speed(mean("bytes_out")), `in ${speed(mean("bytes_in"))}`));
  }

  function drawEvents(events) {
    state.events = events;
    const shown = [...events].sort((one, other) => other.at - one.at).slice(0, 200);
    replace(eventList, shown.length ? shown.map((event) => h("li", {},
      h("button", { type: "button", onclick: () => show(event.at - AROUND_MS, event.at + AROUND_MS) },
        h("time", {}, clock(event.at)),
        h("span", {}, h("span", { class: "line-clamp" }, capital(event.text)),
          h("span", { class: "kind" }, event.kind.replaceAll("-", " "),
            event.lasted_ms === null ? "" : `, ${us(event.lasted_ms * 1000)}`)))))
      : h("li", { class: "empty" }, "No events in this span."));
    charts.forEach((chart) => chart.redraw());
  }

  function drawFindings(found) {
    const items = found.findings.map((finding) => h("li", {},
      h("h3", {}, capital(finding.title)),
      h("div", { class: "detail" }, [
        finding.share === null ? null : `${percent(100 * finding.share)} of the waiting`,
        finding.times > 1 ? `${count(finding.times)} times` : null,
        finding.times > 1 ? `${us(finding.sum_ms * 1000)} in all` : null,
        `last at ${clock(finding.last_at)}`].filter(Boolean).join(", ")),
      h("ul", {}, finding.evidence.map((one) => h("li", {}, one.what,
        one.command ? [" (", h("code", {}, one.command), ")"] : null))),
      finding.next_step ? h("p", {}, finding.next_step) : null,
      h("button", { type: "button", class: "small", onclick: () =>
        show(finding.worst_from - AROUND_MS, finding.worst_at + AROUND_MS) }, "Show the longest")));
    const ruledOut = found.ruled_out.length ? h("details", { class: "pad" },
      h("summary", {}, `${found.ruled_out.length} causes ruled out`),
      h("ul", {}, found.ruled_out.map((one) => h("li", {}, h("b", {}, one.rule.replaceAll("-", " ")), ": ", one.why)))) : null;
    replace(findings, h("header", {}, h("h2", {}, "Findings")), h("div", { class: "body" }, sentenceOf(found)),
      h("ul", { class: "findings" }, items), ruledOut);
  }

  // A long span changes little within a second.
  let refreshed = 0;
  const stopEvery = every(1000, () => {
    const wait = state.length > 6 * 3600e3 ? 30e3 : state.length > 600e3 ? 5e3 : 0;
    if (state.fixed || Date.now() - refreshed < wait) return null;
    refreshed = Date.now();
    return refresh();
  });
  const resized = new ResizeObserver(() => charts.forEach((chart) => chart.resize()));
  resized.observe(grid);
  const recolour = () => charts.forEach((chart) => chart.recolour());
  const dark = matchMedia("(prefers-color-scheme: dark)");
  window.addEventListener("theme", recolour);
  dark.addEventListener("change", recolour);
  return () => {
    state.stopped = true;
    stopEvery();
    doctor.stop();
    controller?.abort();
    resized.disconnect();
    window.removeEventListener("theme", recolour);
    dark.removeEventListener("change", recolour);
    charts.forEach((chart) => chart.destroy());
  };
}

/** Returns the sentence of the findings, which has its time in UTC, with the time of this browser. */
function sentenceOf(found) {
  const [first] = found.findings;
  return first ? found.sentence.replace(/^At [\d:.]+ UTC/, () => `At ${clock(first.worst_from, true)}`) : found.sentence;
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

const speed = (value) => value === null ? DASH : `${bytes(value)}/s`;

const round = (value) => value === null ? null : Math.round(value);

function hitRate(hits, misses) {
  return hits === null || misses === null || hits + misses === 0 ? null
    : `${percent(100 * hits / (hits + misses))} of lookups hit`;
}

/** A time as the input of the browser wants it. */
function local(ms) {
  const at = new Date(ms - new Date(ms).getTimezoneOffset() * 60e3);
  return at.toISOString().slice(0, 19);
}
