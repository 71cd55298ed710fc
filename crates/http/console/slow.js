// Slow commands: SLOWLOG, with the time by stage where the server gives it.

import * as api from "./api.js";
import { COLOURS, swatch } from "./charts.js";
import { confirm, h, panel, replace, svg, table, viewHead } from "./dom.js";
import { moment, plural, shown, us } from "./format.js";
import { edits, loading, problem, whenEditsChange } from "./state.js";

const ENTRIES = 128;

export function slow(main) {
  const list = h("div", {}, loading());
  const reset = h("button", { type: "button", class: "danger", disabled: !edits.on, onclick: clear }, "Reset");
  main.append(viewHead("Slow commands",
    "Commands that ran longer than slowlog-log-slower-than, the latest first. The time has no waiting for the network.",
    h("button", { type: "button", onclick: load }, "Reload"), reset), list);

  async function clear() {
    if (!await confirm("Reset the slow log?", "All entries are removed.", "Reset")) return;
    try { await api.command(["SLOWLOG", "RESET"]); } catch (error) { replace(list, problem(error)); return; }
    load();
  }

  async function load() {
    try {
      const [stages, plain, threshold] = await api.pipeline([["SLOWLOG", "GET", ENTRIES, "STAGES"],
        ["SLOWLOG", "GET", ENTRIES], ["CONFIG", "GET", "slowlog-log-slower-than"]]);
      const entries = stages instanceof Error ? plain : stages;
      if (entries instanceof Error) throw entries;
      draw(entries.map(entryOf), threshold instanceof Error ? null : Number(threshold[1]));
    } catch (error) {
      replace(list, problem(error));
    }
  }

  function draw(entries, threshold) {
    if (!entries.length) {
      const limit = threshold === null ? "" : ` The threshold is ${threshold < 0 ? "off" : us(threshold)}.`;
      replace(list, h("div", { class: "panel empty" }, `No slow commands.${limit}`));
      return;
    }
    const names = [...new Set(entries.flatMap((entry) => Object.keys(entry.stages)))];
    const columns = [
      { name: "Time", cell: (entry) => moment(entry.at), sort: (entry) => entry.id, cls: "mono time" },
      { name: "Took", num: true, cell: (entry) => us(entry.us), sort: (entry) => entry.us },
      { name: "Command", cell: (entry) => h("span", { class: "mono line-clamp", title: entry.text }, entry.text),
        cls: "wrap", sort: (entry) => entry.text, head: true },
      names.length ? { name: "Stages", cell: (entry) => stageBar(entry.stages, names) } : null,
      { name: "Client", cell: (entry) => h("span", { class: "mono" }, shown(entry.client)), sort: (entry) => entry.client },
      { name: "Name", cell: (entry) => entry.name ? shown(entry.name) : null },
    ].filter(Boolean);
    const legend = names.length ? h("div", { class: "legend" }, names.map((name, at) =>
      h("span", {}, swatch(COLOURS[at % COLOURS.length]), name.replaceAll("_", " ")))) : null;
    replace(list, panel(plural(entries.length, "entry"), legend,
      table(columns, entries, { label: "Slow commands", cls: "tall" })));
  }

  const stop = whenEditsChange((on) => { reset.disabled = !on; });
  load();
  return stop;
}

function entryOf([id, at, took, args, client, name, ...more]) {
  const stages = {};
  // The stages are a map: names and microseconds in turn, perhaps in pairs.
  const flat = more.flat(2);
  for (let at = 0; at + 1 < flat.length; at += 2) {
    if (typeof flat[at] === "string" && Number(flat[at + 1]) > 0) stages[flat[at]] = Number(flat[at + 1]);
  }
  const text = args.map((word) => /[\s"']/.test(shown(word)) ? `"${shown(word)}"` : shown(word)).join(" ");
  return { id, at: at * 1000, us: took, text, client: client ?? "", name, stages };
}

function stageBar(stages, names) {
  const all = Object.values(stages).reduce((sum, part) => sum + part, 0);
  if (!all) return null;
  const width = 150;
  let x = 0;
  const title = names.filter((name) => stages[name]).map((name) => `${name.replaceAll("_", " ")} ${us(stages[name])}`);
  const parts = names.map((name, at) => {
    const part = width * (stages[name] ?? 0) / all;
    const rect = svg("rect", { x, y: 0, width: part, height: 10 });
    rect.style.fill = `var(${COLOURS[at % COLOURS.length]})`;
    x += part;
    return rect;
  });
  return svg("svg", { width, height: 10, class: "stages", role: "img", "aria-label": title.join(", ") },
    svg("title", {}, title.join(", ")), parts);
}
