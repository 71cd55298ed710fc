// Settings: CONFIG GET beside the defaults, and CONFIG SET.

import * as api from "./api.js";
import { ask, h, panel, replace, say, table, viewHead } from "./dom.js";
import { count, DASH, parseMap, plural, shown } from "./format.js";
import { edits, loading, problem, whenEditsChange } from "./state.js";

// Their values are shown on request alone.
const SECRETS = /^(requirepass|masterauth|primaryauth|tls-(client-)?key-file-pass|hash-seed)$/;

export function settings(main) {
  const state = { rows: [], onlyChanged: false, revealed: new Set() };
  const list = h("div", {}, loading());
  const filter = h("input", { type: "search", "aria-label": "Filter", placeholder: "Filter by name or value", oninput: draw });
  const changed = h("input", { type: "checkbox", onchange: () => { state.onlyChanged = changed.checked; draw(); } });
  main.append(viewHead("Settings", "CONFIG SET changes the running server; CONFIG REWRITE writes the changes to its file.",
    h("div", { class: "grow" }, filter), h("label", { class: "check" }, changed, "Differ from the default"),
    h("button", { type: "button", onclick: load }, "Reload")), list);

  async function load() {
    try {
      const [values, defaults] = await Promise.all([api.command(["CONFIG", "GET", "*"]), api.defaults().catch(() => ({}))]);
      state.rows = Object.entries(parseMap(values)).map(([name, value]) =>
        ({ name, value: String(shown(value)), initial: defaults[name] ?? null }));
      state.rows.sort((one, other) => one.name.localeCompare(other.name));
      draw();
    } catch (error) {
      replace(list, problem(error));
    }
  }

  const isChanged = (row) => row.initial !== null && row.value !== shown(row.initial);

  function valueOf(row) {
    if (!SECRETS.test(row.name) || !row.value || state.revealed.has(row.name)) return row.value || DASH;
    return h("button", { type: "button", class: "small", onclick: () => { state.revealed.add(row.name); draw(); } }, "Show");
  }

  function draw() {
    const wanted = filter.value.toLowerCase();
    const rows = state.rows.filter((row) => (!state.onlyChanged || isChanged(row))
      && (!wanted || row.name.includes(wanted) || (!SECRETS.test(row.name) && row.value.toLowerCase().includes(wanted))));
    const columns = [
      { name: "Name", head: true, cls: "mono wrap", cell: (row) => row.name, sort: (row) => row.name },
      { name: "Value", cls: "mono wrap", cell: (row) => isChanged(row) ? h("b", {}, valueOf(row)) : valueOf(row) },
      { name: "Default", cls: "mono wrap", cell: (row) => isChanged(row) ? row.initial === "" ? "(empty)" : shown(row.initial)
        : h("span", { class: "muted" }, row.initial === null ? DASH : "same") },
      ...(edits.on ? [{ name: "Action", cls: "actions", cell: (row) => h("button", { type: "button", class: "small",
        onclick: () => edit(row) }, "Change") }] : []),
    ];
    const differ = state.rows.filter(isChanged).length;
    replace(list, panel(`${plural(rows.length, "setting")}, ${count(differ)} differ from the default`,
      edits.on ? h("button", { type: "button", class: "small", onclick: rewrite }, "Write to the file") : null,
      rows.length ? table(columns, rows, { label: "Settings", cls: "tall" })
        : h("div", { class: "empty" }, "No setting matches.")));
  }

  async function edit(row) {
    const done = await ask(row.name, [{ name: "value", label: `Value${row.initial === null ? "" : `; default: ${row.initial || "empty"}`}`,
      value: SECRETS.test(row.name) ? "" : row.value }], "Set", ({ value }) => api.command(["CONFIG", "SET", row.name, value]));
    if (!done) return;
    say(`${row.name} was set.`);
    load();
  }

  async function rewrite() {
    try {
      await api.command(["CONFIG", "REWRITE"]);
      say("The file was written.");
    } catch (error) {
      list.prepend(problem(error));
    }
  }

  const stop = whenEditsChange(draw);
  load();
  return stop;
}
