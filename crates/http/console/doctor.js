// Captures of the server's process by evenkeel-doctor, which sees functions, system calls and the machine.

import * as api from "./api.js";
import { h, replace } from "./dom.js";
import { clock } from "./format.js";

const SECONDS = 10;
const POLL_MS = 1000;

/** Returns the panel, and the function that ends it. Users that may not start a capture see no panel. */
export function doctorPanel() {
  const body = h("div", { class: "body", "aria-live": "polite" });
  const element = h("section", { class: "panel", id: "doctor", hidden: true },
    h("header", {}, h("h2", {}, "Doctor")), body);
  let timer = null, over = false;

  async function look() {
    try {
      show(await api.capture());
    } catch {
      element.hidden = true;
    }
  }

  async function start() {
    try {
      show(await api.startCapture(SECONDS));
    } catch (error) {
      replace(body, h("p", { class: "bad-text", role: "alert" }, error.message), button());
    }
  }

  function button() {
    return h("button", { type: "button", class: "small", onclick: start }, `Capture ${SECONDS} s`);
  }

  function show({ available, why, last }) {
    if (over) return;
    element.hidden = false;
    clearTimeout(timer);
    if (last.state === "running") timer = setTimeout(look, POLL_MS);
    replace(body, available ? null : h("p", { class: "muted" }, `${why}.`), lastCapture(last),
      available && last.state !== "running"
        ? [h("p", { class: "muted" }, "evenkeel-doctor sees functions, system calls and other processes."), button()]
        : null);
  }

  function lastCapture(last) {
    if (last.state === "running") return h("p", {}, `A capture of ${last.seconds} s runs since ${clock(last.since)}\u2026`);
    if (last.state === "failed") return h("p", { class: "bad-text" }, `${clock(last.at)}: ${last.reason}`);
    if (last.state !== "done") return null;
    return [h("p", {}, `Captured at ${clock(last.at)}. `,
      h("a", { href: "/api/doctor/page", target: "_blank", rel: "noopener" }, "Findings and flame graphs")),
    h("details", {}, h("summary", {}, "Report"), h("pre", { class: "report" }, last.text))];
  }

  look();
  return { element, stop: () => { over = true; clearTimeout(timer); } };
}
