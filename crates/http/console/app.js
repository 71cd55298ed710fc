// The frame of the page: login, navigation, the state of the server, colours, and the switch for edits.

import * as api from "./api.js";
import { h, replace } from "./dom.js";
import { parseInfo, seconds } from "./format.js";
import { edits, setEdits } from "./state.js";
import { overview } from "./overview.js";
import { slow } from "./slow.js";
import { hot } from "./hot.js";
import { clients } from "./clients.js";
import { replication } from "./replication.js";
import { keys } from "./keys.js";
import { slots } from "./slots.js";
import { terminal } from "./terminal.js";
import { settings } from "./settings.js";
import { users } from "./users.js";

const VIEWS = [
  { group: "Watch" },
  { name: "overview", title: "Overview", mount: overview },
  { name: "slow", title: "Slow commands", mount: slow },
  { name: "hot", title: "Hot and big keys", mount: hot },
  { name: "clients", title: "Clients", mount: clients },
  { name: "replication", title: "Replication", mount: replication },
  { group: "Data" },
  { name: "keys", title: "Keys", mount: keys },
  { name: "slots", title: "Slots", mount: slots },
  { name: "terminal", title: "Command line", mount: terminal },
  { group: "Server" },
  { name: "settings", title: "Settings", mount: settings },
  { name: "users", title: "ACL users", mount: users },
];

const STATE_INTERVAL_MS = 3000;
const root = document.getElementById("root");

let unmount = null, stateTimer = null;

function leave() {
  clearInterval(stateTimer);
  if (unmount) unmount();
  unmount = null;
}

// --- Login -------------------------------------------------------------------------------------------------

function showLogin(reason) {
  leave();
  setEdits(false);
  document.title = "Log in \u2013 Evenkeel console";
  const user = h("input", { id: "user", autocomplete: "username", value: "default", spellcheck: "false" });
  const password = h("input", { id: "password", type: "password", autocomplete: "current-password" });
  const problem = h("div", { id: "login-problem", role: "alert" }, reason ? h("div", { class: "note" }, reason) : null);
  const send = h("button", { class: "primary", id: "login" }, "Log in");
  const submit = async (event) => {
    event.preventDefault();
    send.disabled = true;
    replace(problem);
    try {
      await api.logIn(user.value, password.value);
      showFrame();
    } catch (error) {
      replace(problem, h("div", { class: "note bad" }, `${error.message}.`));
      password.value = "";
      password.focus();
    }
    send.disabled = false;
  };
  replace(root, h("main", { class: "login" }, h("form", { class: "panel", onsubmit: submit },
    h("div", { class: "brand" }, logo(), h("h1", {}, "Evenkeel console")),
    h("label", { class: "field" }, "User", user),
    h("label", { class: "field" }, "Password", password),
    problem, send)));
  password.focus();
}

function logo() {
  return h("img", { src: "/console/icon.svg", alt: "", width: "22", height: "22" });
}

// --- Frame -------------------------------------------------------------------------------------------------

function showFrame() {
  const nav = h("nav", { class: "nav", id: "nav", "aria-label": "Views" });
  const menu = h("button", { class: "menu-button", type: "button", "aria-controls": "nav", "aria-expanded": "false",
    onclick: () => toggleMenu(!nav.classList.contains("open")) }, "Menu");
  const toggleMenu = (open) => {
    nav.classList.toggle("open", open);
    menu.setAttribute("aria-expanded", String(open));
  };
  const lists = [];
  for (const view of VIEWS) {
    if (view.group) {
      const id = `group-${view.group}`;
      const list = h("ul", { "aria-labelledby": id });
      lists.push(list);
      nav.append(h("div", { class: "group", id }, view.group), list);
    } else {
      const link = h("a", { href: `#/${view.name}`, onclick: () => toggleMenu(false) }, view.title);
      lists.at(-1).append(h("li", {}, link));
    }
  }
  const server = h("div", { class: "server", id: "server" });
  const strip = h("div", { class: "strip", hidden: true },
    "Edits are allowed: a change reaches the server at once, and cannot be undone.");
  const box = h("input", { type: "checkbox", id: "edits", onchange: () => setEdits(box.checked) });
  const label = h("label", { class: "switch" }, box, "Allow edits");
  const main = h("main", { id: "main", tabindex: "-1" });
  const skip = h("a", { class: "skip", href: "#main",
    onclick: (event) => { event.preventDefault(); main.focus(); } }, "Skip to content");
  edits.onchange = (on) => {
    box.checked = on;
    strip.hidden = !on;
    label.classList.toggle("on", on);
  };
  edits.onchange(edits.on);
  replace(root, skip,
    h("header", { class: "bar" }, menu, h("div", { class: "brand" }, logo(), h("span", {}, "Evenkeel")), server,
      h("div", { class: "bar-end" }, label, themeButton(),
        h("span", { class: "muted user-name" }, api.session.user),
        h("button", { type: "button", class: "plain", id: "logout", onclick: end }, "Log out"))),
    strip, h("div", { class: "frame" }, nav, main),
    h("div", { id: "status", role: "status", "aria-live": "polite", class: "skip" }));
  const refresh = () => showState(server);
  refresh();
  stateTimer = setInterval(refresh, STATE_INTERVAL_MS);
  route();
}

async function end() {
  try { await api.logOut(); } catch { /* the session is over in any case */ }
  showLogin("You are logged out.");
}

async function showState(element) {
  if (document.hidden) return;
  try {
    const text = await api.command(["INFO", "server", "replication", "persistence"]);
    const info = parseInfo(text);
    const replica = info.role === "slave";
    const loading = info.loading === "1";
    replace(element,
      h("span", { class: loading ? "dot" : "dot ok", title: loading ? "Loading data" : "Connected" }),
      h("span", { class: "mono" }, `${location.hostname}:${info.tcp_port ?? ""}`),
      h("span", { class: "pill" }, replica ? "replica" : "primary"),
      loading ? h("span", { class: "pill warn" }, "loading") : null,
      h("span", { class: "wide" }, `Evenkeel ${info.evenkeel_version ?? ""}`.trim()),
      h("span", { class: "wide" }, `up ${seconds(Number(info.uptime_in_seconds))}`));
  } catch (error) {
    const lost = !(error instanceof api.ServerError);
    replace(element, h("span", { class: lost ? "dot bad" : "dot" }),
      lost ? h("span", { class: "bad-text" }, "No connection to the server") : h("span", {}, location.host));
  }
}

function themeButton() {
  const button = h("button", { type: "button", class: "plain", id: "theme" });
  const isDark = () => document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const label = () => { button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark() ? "Light colours" : "Dark colours"); };
  button.addEventListener("click", () => {
    const next = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try { localStorage.setItem("evenkeel-theme", next); } catch { /* for this page alone */ }
    window.dispatchEvent(new Event("theme"));
  });
  window.addEventListener("theme", label);
  label();
  return button;
}

// --- Routes ------------------------------------------------------------------------------------------------

function route() {
  const main = document.getElementById("main");
  if (!main) return;
  if (unmount) unmount();
  unmount = null;
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const view = VIEWS.find((view) => view.name === name) ?? VIEWS.find((view) => view.name === "overview");
  document.title = `${view.title} \u2013 Evenkeel console`;
  for (const link of document.querySelectorAll(".nav a")) {
    if (link.getAttribute("href") === `#/${view.name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.replaceChildren();
  unmount = view.mount(main, rest) ?? null;
  window.scrollTo(0, 0);
}

window.addEventListener("hashchange", route);
api.whenSessionEnds(() => showLogin("The session has ended."));
try {
  await api.currentSession();
  showFrame();
} catch (error) {
  showLogin(error.status === 401 ? null : error.message);
}
