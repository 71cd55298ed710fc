// The browser of keys: a page of SCAN at a time, beside the value of the chosen key.

import * as api from "./api.js";
import { h, replace, table, viewHead } from "./dom.js";
import { brief, bytes, count, DASH, parseInfo, same, seconds, shown, unescape } from "./format.js";
import { edits, problem, whenEditsChange } from "./state.js";
import { newKey, ValueView } from "./values.js";

const PAGE = 100;
const PAGES_KEPT = 100;
// A turn of SCAN looks at so many keys: few at first, more while few of them match.
const COUNT_MIN = 200, COUNT_MAX = 5000;
const TYPES = ["any type", "string", "list", "set", "zset", "hash", "stream", "array"];

export function keys(main, [dbInRoute, keyInRoute]) {
  const state = { db: Number(dbInRoute) || 0, pages: [], page: -1, cursor: null, seen: 0, size: null,
    pending: [], controller: null, chosen: null };
  const db = h("select", { "aria-label": "Database" }, h("option", { value: state.db }, `db ${state.db}`));
  const pattern = h("input", { type: "search", value: "*", "aria-label": "Pattern", id: "pattern", spellcheck: "false",
    placeholder: "Pattern, such as user:*" });
  const type = h("select", { "aria-label": "Type" }, TYPES.map((name) => h("option", { value: name }, name)));
  const stop = h("button", { type: "button", hidden: true, onclick: () => state.controller?.abort() }, "Stop");
  const form = h("form", { class: "tools", onsubmit: (event) => { event.preventDefault(); restart(); } },
    db, h("div", { class: "grow" }, pattern), type, h("button", { class: "primary", id: "scan" }, "Scan"), stop);
  const progress = h("span", { class: "muted", role: "status" });
  const list = h("div", {});
  const previous = h("button", { type: "button", class: "small", onclick: () => turn(-1) }, "Previous");
  const next = h("button", { type: "button", class: "small", id: "next", onclick: () => turn(1) }, "Next");
  const value = new ValueView({ db: () => state.db, onchange: refreshRow, ondelete: removeRow, onrename: restart });
  const create = h("button", { type: "button", hidden: !edits.on, onclick: async () => {
    const key = await newKey(state.db);
    if (key !== null) { await restart(); choose({ key }); }
  } }, "New key");
  main.append(viewHead("Keys", null, create), h("div", { class: "keys" },
    h("section", { class: "panel" }, h("header", {}, h("div", { class: "grow" }, form)), list,
      h("div", { class: "pager" }, previous, next, progress)), value.element));
  type.addEventListener("change", restart);
  db.addEventListener("change", () => { state.db = Number(db.value); value.clear(); restart(); });

  async function fillDatabases() {
    try {
      const [config, info] = await api.pipeline([["CONFIG", "GET", "databases"], ["INFO", "keyspace"]]);
      const counts = info instanceof Error ? {} : parseInfo(info);
      const known = Object.keys(counts).map((name) => Number(name.slice(2)));
      const all = config instanceof Error ? Math.max(15, ...known) + 1 : Number(config[1]);
      const numbers = Array.from({ length: Math.min(all, 1024) }, (_, number) => number);
      replace(db, numbers.map((number) => {
        const found = counts[`db${number}`]?.match(/keys=(\d+)/)?.[1];
        return h("option", { value: number }, found ? `db ${number} (${brief(Number(found))})` : `db ${number}`);
      }));
      db.value = String(state.db);
    } catch { /* the present database stays */ }
  }

  function restart() {
    state.controller?.abort();
    Object.assign(state, { pages: [], page: -1, cursor: "0", seen: 0, pending: [], size: null });
    return turn(1);
  }

  async function turn(step) {
    state.controller?.abort();
    const to = state.page + step;
    if (to < 0) return;
    if (to >= state.pages.length) {
      const found = await scanPage();
      if (!found || (!found.length && state.pages.length)) return showProgress();
      state.pages.push(found);
      if (state.pages.length > PAGES_KEPT) state.pages[state.pages.length - PAGES_KEPT - 1] = null;
    }
    state.page = to;
    draw();
  }

  /** Goes on with the scan until a page is full, the scan is over, or the operator stops it. */
  async function scanPage() {
    const mine = state.controller = new AbortController(), options = { db: state.db, signal: mine.signal };
    const wanted = unescape(pattern.value || "*"), found = state.pending.splice(0);
    let size = COUNT_MIN;
    stop.hidden = false;
    next.disabled = true;
    try {
      state.size ??= await api.command(["DBSIZE"], options);
      if (typeof wanted === "string" && !/[*?[\\]/.test(wanted)) {
        state.cursor = null;
        if (await api.command(["EXISTS", wanted], options)) found.push(wanted);
      }
      while (state.cursor !== null && found.length < PAGE) {
        const filter = type.value === TYPES[0] ? [] : ["TYPE", type.value];
        const match = wanted === "*" ? [] : ["MATCH", wanted];
        const [cursor, names] = await api.command(["SCAN", state.cursor, ...match, "COUNT", size, ...filter], options);
        state.cursor = cursor === "0" ? null : cursor;
        state.seen = Math.min(state.seen + size, state.size);
        found.push(...names);
        size = names.length > PAGE / 2 ? COUNT_MIN : Math.min(COUNT_MAX, size * 2);
        showProgress(found.length);
      }
    } catch (error) {
      if (error.name !== "AbortError") { replace(list, problem(error)); return null; }
      if (mine !== state.controller) return null;
    } finally {
      if (mine === state.controller) stop.hidden = true;
    }
    state.pending = found.splice(PAGE);
    return describe(found);
  }

  async function describe(names) {
    const replies = await api.pipeline(names.flatMap((name) =>
      [["TYPE", name], ["PTTL", name], ["MEMORY", "USAGE", name, "SAMPLES", 5]]), { db: state.db });
    return names.map((key, at) => {
      const [type, ttl, memory] = replies.slice(3 * at, 3 * at + 3).map((one) => one instanceof Error ? null : one);
      return { key, type, ttl, memory };
    });
  }

  function showProgress(found) {
    const over = state.cursor === null && !state.pending.length;
    const part = state.size ? `${count(Math.min(state.seen, state.size))} of ${count(state.size)} keys looked at` : "";
    if (found !== undefined) { progress.textContent = `${part}, ${count(found)} match`; return; }
    previous.disabled = state.page <= 0 || !state.pages[state.page - 1];
    next.disabled = over && state.page >= state.pages.length - 1;
    const page = state.pages.length > 1 || !over ? `page ${state.page + 1}, ` : "";
    progress.textContent = state.size === null ? "" : over ? `${page}all of ${count(state.size)} keys looked at` : `${page}${part}`;
  }

  function draw() {
    const rows = state.pages[state.page] ?? [];
    const columns = [
      { name: "Key", head: true, cls: "wrap", sort: (row) => shown(row.key), cell: (row) =>
        h("button", { type: "button", class: "row-link", onclick: () => choose(row) },
        h("span", { class: "line-clamp" }, shown(row.key) || "(empty)")) },
      { name: "Type", cell: (row) => row.type, sort: (row) => row.type },
      { name: "TTL", num: true, cell: (row) => ttlText(row.ttl), sort: (row) => row.ttl === -1 ? Infinity : row.ttl },
      { name: "Memory", num: true, cell: (row) => row.memory === null ? DASH : bytes(row.memory),
        sort: (row) => row.memory ?? -1 },
    ];
    replace(list, rows.length ? table(columns, rows, { label: "Keys", cls: "tall",
      chosen: (row) => state.chosen && same(row.key, state.chosen) })
      : h("div", { class: "empty" }, state.size === 0 ? "This database is empty." : "No key matches."));
    showProgress();
  }

  function choose(row) {
    state.chosen = row.key;
    history.replaceState(null, "", `#/keys/${state.db}/${encodeURIComponent(JSON.stringify(row.key))}`);
    draw();
    value.show(row.key);
    if (matchMedia("(max-width: 900px)").matches) value.element.scrollIntoView({ block: "start" });
  }

  async function refreshRow(key) {
    const [fresh] = await describe([key]);
    for (const row of state.pages.flatMap((page) => page ?? [])) if (same(row.key, key)) Object.assign(row, fresh);
    draw();
  }

  function removeRow(key) {
    state.pages = state.pages.map((page) => page?.filter((row) => !same(row.key, key)));
    state.chosen = null;
    draw();
  }

  if (keyInRoute) {
    try {
      state.chosen = JSON.parse(decodeURIComponent(keyInRoute));
      value.show(state.chosen);
    } catch { /* the address names no key */ }
  }
  fillDatabases();
  restart();
  const stopEdits = whenEditsChange((on) => { create.hidden = !on; });
  return () => { stopEdits(); state.controller?.abort(); value.destroy(); };
}

export function ttlText(ms) {
  return ms === null || ms === -2 ? DASH : ms === -1 ? "none" : seconds(ms < 10000 ? ms / 1000 : Math.round(ms / 1000));
}
