// Slots: the keys of each of a database's 16,384 slots, as a heat map. A slot is the unit of locking.

import * as api from "./api.js";
import { h, panel, replace, table, viewHead } from "./dom.js";
import { brief, count, percent } from "./format.js";
import { every, loading, problem } from "./state.js";

const SLOTS = 16384, SIDE = 128, CELL = 5, FULLEST = 10;
const INTERVAL_MS = 5000;

/** Opacity of a cell that has a key, and of the fullest. */
const FAINTEST = 0.12, STRONGEST = 1;

export function slots(main) {
  const state = { counts: null, stopped: false };
  const db = h("input", { id: "slots-db", type: "number", min: "0", max: "15", value: "0", onchange: () => load() });
  const body = h("div", {}, loading());
  const canvas = h("canvas", { class: "slots", width: SIDE * CELL, height: SIDE * CELL, role: "img", tabindex: "0",
    "aria-label": "Keys by slot" });
  const pointed = h("p", { class: "muted", "aria-live": "polite" }, "Point at a cell to see its slot.");
  canvas.addEventListener("pointermove", (event) => point(event));
  main.append(viewHead("Slots", "A key belongs to a slot by its name; keys with the same {tag} share one, and its lock.",
    h("label", { class: "inline" }, "Database ", db)), body);

  async function load() {
    try {
      const reply = await api.slots(Number(db.value));
      if (state.stopped) return;
      state.counts = reply.counts;
      draw();
    } catch (error) {
      replace(body, problem(error));
    }
  }

  function draw() {
    const { counts } = state;
    const sum = counts.reduce((all, one) => all + one, 0);
    const order = [...counts.keys()].sort((a, b) => counts[b] - counts[a]);
    const largest = counts[order[0]], used = counts.filter((one) => one > 0).length;
    paint(largest);
    const fullest = order.slice(0, FULLEST).filter((slot) => counts[slot] > 0);
    const facts = [["Keys", count(sum)], ["Slots with keys", `${count(used)} of ${count(SLOTS)}`],
      ["Mean", brief(Math.round(10 * sum / SLOTS) / 10)], ["Largest slot", count(largest)]];
    const columns = [
      { name: "Slot", cell: (slot) => slot, num: true, head: true },
      { name: "Keys", cell: (slot) => count(counts[slot]), num: true },
      { name: "Share", cell: (slot) => percent(100 * counts[slot] / sum), num: true },
    ];
    replace(body, h("div", { class: "slots-view" },
      panel("Keys by slot", null, h("div", { class: "pad" }, canvas, pointed, scale(largest))),
      h("div", {}, panel("This database", null, h("div", { class: "body" },
        h("dl", { class: "facts" }, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])))),
      fullest.length ? h("div", { class: "below" }, panel("Fullest slots", null, table(columns, fullest))) : null)));
  }

  /** Paints the cells, the slots in rows of 128. The strength of a cell grows with the root of its keys. */
  function paint(largest) {
    const context = canvas.getContext("2d");
    const colour = getComputedStyle(document.documentElement).getPropertyValue("--series-1").trim();
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.fillStyle = colour;
    state.counts.forEach((keys, slot) => {
      if (!keys) return;
      context.globalAlpha = FAINTEST + (STRONGEST - FAINTEST) * Math.sqrt(keys / largest);
      context.fillRect(slot % SIDE * CELL, Math.floor(slot / SIDE) * CELL, CELL - 1, CELL - 1);
    });
    context.globalAlpha = 1;
  }

  function point(event) {
    const box = canvas.getBoundingClientRect();
    const at = (place, size) => Math.min(SIDE - 1, Math.max(0, Math.floor(place / size * SIDE)));
    const slot = at(event.clientY - box.top, box.height) * SIDE + at(event.clientX - box.left, box.width);
    replace(pointed, `Slot ${slot}: ${count(state.counts?.[slot] ?? 0)} keys`);
  }

  function scale(largest) {
    return h("div", { class: "scale", "aria-hidden": "true" }, h("span", {}, "0"), h("span", { class: "ramp" }),
      h("span", {}, count(largest)));
  }

  const recolour = () => state.counts && paint(Math.max(...state.counts));
  const stopEvery = every(INTERVAL_MS, load);
  window.addEventListener("theme", recolour);
  return () => {
    state.stopped = true;
    stopEvery();
    window.removeEventListener("theme", recolour);
  };
}
