// Hot keys by HOTKEYS, and big keys by a sample of SCAN and MEMORY USAGE.

import * as api from "./api.js";
import { h, panel, replace, table, viewHead } from "./dom.js";
import { brief, bytes, count, parseMap, seconds, shown, us } from "./format.js";
import { loading, problem } from "./state.js";

const SAMPLE_STEP = 10000;
const BIGGEST = 50;
const METRICS = [["by-cpu-time-us", "By CPU time", "CPU time", us], ["by-net-bytes", "By network bytes", "Bytes", bytes],
  ["by-requests", "By requests", "Requests", brief]];

export function hot(main) {
  const hotBody = h("div", { class: "body" }, loading()), bigBody = h("div", {});
  const time = h("select", { "aria-label": "Duration" }, [5, 10, 60].map((s) => h("option", { value: s }, `${s} s`)));
  time.value = "10";
  const start = h("button", { type: "button", class: "primary", onclick: measure }, "Count hot keys");
  main.append(viewHead("Hot and big keys"),
    panel("Hot keys", [time, start], hotBody), bigPanel(bigBody));
  let timer = null, over = false, sample = null;

  async function measure() {
    start.disabled = true;
    try {
      // An earlier count that has ended is dropped by the next start.
      await api.pipeline([["HOTKEYS", "STOP"], ["HOTKEYS", "RESET"]]);
      await api.command(["HOTKEYS", "START", "METRICS", 3, "CPU", "NET", "REQUESTS", "COUNT", 20, "DURATION", time.value]);
      await show();
    } catch (error) {
      replace(hotBody, problem(error));
      start.disabled = false;
    }
  }

  async function show() {
    clearTimeout(timer);
    try {
      const reply = await api.command(["HOTKEYS", "GET"]);
      const report = parseMap(reply?.[0]);
      const active = Number(report["tracking-active"]) === 1;
      start.disabled = active;
      if (reply === null) {
        replace(hotBody, h("div", { class: "empty" }, "No count yet. A count costs less than a hundredth of a command each."));
      } else draw(report, active);
      if (active && !over) timer = setTimeout(show, 1000);
    } catch (error) {
      start.disabled = false;
      replace(hotBody, problem(error));
    }
  }

  function draw(report, active) {
    const total = Number(report["all-commands-all-slots-us"]);
    const lead = h("p", { class: "muted" }, `${active ? "Counting for" : "Counted for"} `,
      seconds(Number(report["collection-duration-ms"]) / 1000), `, ${us(total)} of commands.`);
    const tables = METRICS.filter(([field]) => report[field]).map(([field, title, unit, format]) => {
      const list = report[field], rows = [];
      for (let at = 0; at + 1 < list.length; at += 2) rows.push({ key: list[at], weight: list[at + 1] });
      const sum = field === "by-cpu-time-us" ? total : null;
      const columns = [{ name: "Key", cell: (row) => keyLink(row.key), head: true, cls: "wrap" },
        { name: unit, num: true, cell: (row) => format(row.weight) },
        sum ? { name: "Share", num: true, cell: (row) => `${(100 * row.weight / sum).toFixed(1)}\u00a0%` } : null];
      return panel(title, null, rows.length ? table(columns.filter(Boolean), rows, { label: title })
        : h("div", { class: "empty" }, "No commands with keys."));
    });
    replace(hotBody, lead, h("div", { class: "charts" }, tables));
  }

  function bigPanel(body) {
    const db = h("input", { type: "text", inputmode: "numeric", value: "0", size: "3", "aria-label": "Database" });
    const go = h("button", { type: "button", class: "primary", onclick: () => run(false) }, `Sample ${count(SAMPLE_STEP)} keys`);
    const more = h("button", { type: "button", disabled: true, onclick: () => run(true) }, "Continue");
    const stop = h("button", { type: "button", disabled: true, onclick: () => sample?.controller.abort() }, "Stop");
    replace(body, h("div", { class: "empty" },
      "A sample walks the keys with SCAN, asks MEMORY USAGE of each, and keeps the biggest."));

    async function run(isMore) {
      if (!isMore) sample = { cursor: "0", seen: 0, found: [], size: null, db: Number(db.value) || 0 };
      sample.controller = new AbortController();
      const options = { db: sample.db, signal: sample.controller.signal }, target = sample.seen + SAMPLE_STEP;
      [go.disabled, more.disabled, stop.disabled] = [true, true, false];
      try {
        sample.size = await api.command(["DBSIZE"], options);
        do {
          const [cursor, names] = await api.command(["SCAN", sample.cursor, "COUNT", 500], options);
          const sizes = await api.pipeline(names.flatMap((name) =>
            [["MEMORY", "USAGE", name, "SAMPLES", 5], ["TYPE", name]]), options);
          if (sizes[0] instanceof Error) throw sizes[0];
          names.forEach((key, at) => {
            const size = sizes[2 * at];
            if (typeof size === "number") sample.found.push({ key, size, type: sizes[2 * at + 1] });
          });
          sample.found.sort((one, other) => other.size - one.size);
          sample.found.length = Math.min(sample.found.length, BIGGEST);
          sample.cursor = cursor;
          sample.seen += names.length;
          drawBig();
        } while (sample.cursor !== "0" && sample.seen < target && !over);
      } catch (error) {
        drawBig();
        const said = problem(error);
        if (said) body.prepend(said);
      }
      [go.disabled, more.disabled, stop.disabled] = [false, sample.cursor === "0", true];
    }

    function drawBig() {
      const part = sample.size ? ` of ${count(sample.size)}` : "";
      const columns = [{ name: "Key", cell: (row) => keyLink(row.key, sample.db), head: true, cls: "wrap" },
        { name: "Type", cell: (row) => row.type, sort: (row) => row.type },
        { name: "Memory", num: true, cell: (row) => bytes(row.size), sort: (row) => row.size }];
      replace(body, h("p", { class: "pad muted", role: "status" }, `${count(sample.seen)}${part} keys sampled.`),
        sample.found.length ? table(columns, sample.found, { label: "Big keys" }) : null);
    }

    return panel("Big keys", [h("label", { class: "check" }, "Database", db), go, more, stop], body);
  }

  show();
  return () => { over = true; clearTimeout(timer); sample?.controller.abort(); };
}

/** A link to the view of a key. */
export function keyLink(key, db = 0) {
  return h("a", { class: "mono", href: `#/keys/${db}/${encodeURIComponent(JSON.stringify(key))}` }, shown(key));
}
