// State that views share: the switch for edits, and the parts that say why something is not shown.

import * as api from "./api.js";
import { h } from "./dom.js";

const listeners = new Set();

export const edits = { on: false, onchange: () => {} };

export function setEdits(on) {
  edits.on = on;
  edits.onchange(on);
  for (const listener of listeners) listener(on);
}

/** Calls back when the switch changes; returns the function that ends it. */
export function whenEditsChange(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Says an error; of a missing permission, which it is and how to grant it. */
export function problem(error) {
  if (error?.name === "AbortError") return null;
  const text = error?.message ?? String(error);
  if (text.startsWith("NOPERM") || error?.status === 403) {
    const found = text.match(/'([^']+)' command/) ?? text.match(/run ([A-Z|]+)/);
    const user = api.session.user;
    return h("div", { class: "note warn", role: "note" },
      found ? h("p", {}, `The user ${user} has no permission to run ${found[1].toUpperCase().replace("|", " ")}. `,
        "An administrator grants it with ", h("code", {}, `ACL SETUSER ${user} +${found[1].toLowerCase()}`), ".")
        : h("p", {}, `The user ${user} lacks a permission.`),
      h("p", { class: "mono" }, text));
  }
  if (error instanceof api.ServerError) return h("div", { class: "note bad", role: "alert" }, text);
  return h("div", { class: "note bad", role: "alert" }, `No reply from the server: ${text}`);
}

/** Runs `work` now and every `ms`, one run at a time, while the page is visible; returns the function that ends it. */
export function every(ms, work) {
  let timer = null, over = false;
  const turn = async () => {
    if (!document.hidden) await work();
    if (!over) timer = setTimeout(turn, ms);
  };
  turn();
  return () => { over = true; clearTimeout(timer); };
}

/** Returns a part of the page that says "Loading" until it is replaced. */
export function loading() {
  return h("div", { class: "empty" }, "Loading\u2026");
}
