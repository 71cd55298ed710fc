// Clients: CLIENT LIST as a table, and CLIENT KILL.

import * as api from "./api.js";
import { confirm, h, panel, replace, say, table, viewHead } from "./dom.js";
import { bytes, count, DASH, plural, seconds } from "./format.js";
import { loading, problem } from "./state.js";

const SHOWN_MAX = 500;

const number = (name) => (client) => Number(client[name] ?? 0);

export function clients(main) {
  const list = h("div", {}, loading());
  const filter = h("input", { type: "search", placeholder: "Filter: address, user, command", "aria-label": "Filter",
    oninput: draw });
  const state = { clients: [], sort: { by: "ID", down: false } };
  main.append(viewHead("Clients", null, h("div", { class: "grow" }, filter),
    h("button", { type: "button", onclick: load }, "Reload")), list);

  async function load() {
    try {
      const text = await api.command(["CLIENT", "LIST"]);
      state.clients = String(text).split("\n").filter(Boolean).map((line) => {
        const client = {};
        for (const part of line.split(" ")) {
          const at = part.indexOf("=");
          if (at > 0) client[part.slice(0, at)] = part.slice(at + 1);
        }
        return client;
      });
      draw();
    } catch (error) {
      replace(list, problem(error));
    }
  }

  async function kill(client) {
    const text = [h("p", {}, "The server closes the connection of this client:"),
      h("p", { class: "mono" }, `${client.addr} ${client.name ?? ""} (user ${client.user}, last command ${client.cmd})`)];
    if (!await confirm("Kill this client?", text, "Kill")) return;
    try {
      const killed = await api.command(["CLIENT", "KILL", "ID", client.id]);
      say(killed ? "The client was killed." : "The client was gone already.");
      load();
    } catch (error) {
      list.prepend(problem(error));
    }
  }

  function draw() {
    const wanted = filter.value.toLowerCase();
    const found = state.clients.filter((client) => !wanted
      || ["addr", "name", "user", "cmd", "lib-name", "id"].some((name) => client[name]?.toLowerCase().includes(wanted)));
    const columns = [
      { name: "ID", num: true, cell: (one) => one.id, sort: number("id") },
      { name: "Address", cell: (one) => one.addr, sort: (one) => one.addr, cls: "mono", head: true },
      { name: "Name", cell: (one) => one.name || DASH, sort: (one) => one.name ?? "", cls: "wrap" },
      { name: "User", cell: (one) => one.user, sort: (one) => one.user },
      { name: "DB", num: true, cell: (one) => one.db, sort: number("db") },
      { name: "Last command", cell: (one) => one.cmd, sort: (one) => one.cmd, cls: "mono" },
      { name: "Age", num: true, cell: (one) => seconds(Number(one.age)), sort: number("age") },
      { name: "Idle", num: true, cell: (one) => seconds(Number(one.idle)), sort: number("idle") },
      { name: "Flags", cell: (one) => one.flags, sort: (one) => one.flags },
      { name: "Output", num: true, cell: (one) => bytes(Number(one.omem)), sort: number("omem") },
      { name: "Memory", num: true, cell: (one) => bytes(Number(one["tot-mem"])), sort: number("tot-mem") },
      { name: "Library", cell: (one) => one["lib-name"] ? `${one["lib-name"]} ${one["lib-ver"] ?? ""}` : DASH,
        sort: (one) => one["lib-name"] ?? "" },
      { name: "Action", cls: "actions", cell: (one) => h("button", { type: "button", class: "small danger",
        "aria-label": `Kill ${one.addr}`, onclick: () => kill(one) }, "Kill") },
    ];
    const part = `${found.length > SHOWN_MAX ? `${count(SHOWN_MAX)} shown of ` : ""}${plural(found.length, "client")}`;
    const filtered = found.length < state.clients.length ? `, ${count(state.clients.length)} in all` : "";
    replace(list, panel(`${part}${filtered}`, null, table(columns, found, { label: "Clients", cls: "tall",
      max: SHOWN_MAX, sortBy: state.sort.by, down: state.sort.down,
      onsort: (sort) => { state.sort = { ...sort }; } })));
  }

  load();
}
