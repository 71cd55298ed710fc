// Builds elements. Text reaches the page as text nodes alone, so that no key or value is read as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of [children].flat(9)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function svg(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

export function panel(title, tools, ...body) {
  return h("section", { class: "panel" },
    h("header", {}, h("h2", {}, title), tools ? h("div", { class: "tools push" }, tools) : null), body);
}

/** Returns the head of a view. */
export function viewHead(title, lead, ...tools) {
  return h("div", { class: "head" }, h("h1", {}, title),
    tools.length ? h("div", { class: "tools push" }, tools) : null, lead ? h("p", { class: "lead" }, lead) : null);
}

/**
 * Builds a table. A column has `name`, `cell(row)`, and perhaps `num`, `cls`, `sort(row)` and `head`, which makes its
 * cells the heads of their rows.
 */
export function table(columns, rows, options = {}) {
  const body = h("tbody");
  const state = { by: options.sortBy ?? null, down: options.down ?? true };
  const heads = columns.map((column) => {
    if (!column.sort) return h("th", { scope: "col", class: column.num ? "num" : null }, column.name);
    const mark = h("span", { "aria-hidden": "true" });
    const button = h("button", { class: "sort", type: "button", onclick: () => sortBy(column) }, column.name, mark);
    const head = h("th", { scope: "col", class: column.num ? "num" : null }, button);
    head.mark = mark;
    return head;
  });

  function sortBy(column) {
    state.down = state.by === column.name ? !state.down : Boolean(column.num);
    state.by = column.name;
    options.onsort?.(state);
    draw();
  }

  function draw() {
    const column = columns.find((one) => one.name === state.by);
    let shown = rows;
    if (column?.sort) {
      const sign = state.down ? -1 : 1;
      shown = [...rows].sort((a, b) => sign * compare(column.sort(a), column.sort(b)));
    }
    columns.forEach((one, at) => {
      if (!one.sort) return;
      const active = one.name === state.by;
      heads[at].setAttribute("aria-sort", active ? (state.down ? "descending" : "ascending") : "none");
      heads[at].mark.textContent = active ? (state.down ? " \u25be" : " \u25b4") : "";
    });
    replace(body, shown.slice(0, options.max ?? Infinity).map((row) => {
      const cells = columns.map((column) => {
        const cls = [column.num ? "num" : "", column.cls ?? ""].join(" ").trim();
        const properties = { class: cls || null, scope: column.head ? "row" : null };
        return h(column.head ? "th" : "td", properties, column.cell(row) ?? "\u2013");
      });
      return h("tr", { class: options.chosen?.(row) ? "chosen" : null }, cells);
    }));
  }

  draw();
  return h("div", { class: `scroll ${options.cls ?? ""}`, tabindex: "0", role: "region",
    "aria-label": options.label ?? "Table" }, h("table", {}, h("thead", {}, h("tr", {}, heads)), body));
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

function open(dialog) {
  document.body.append(dialog);
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => { dialog.remove(); resolve(dialog.answer ?? null); });
    dialog.showModal();
  });
}

function close(dialog, answer) {
  dialog.answer = answer;
  dialog.close();
}

/** Asks before an action; resolves to whether the operator agrees. */
export async function confirm(title, text, action, danger = true) {
  const dialog = h("dialog", { "aria-label": title });
  const form = h("form", { onsubmit: (event) => { event.preventDefault(); close(dialog, true); } },
    h("h2", {}, title), h("div", {}, text), h("div", { class: "tools" },
      h("button", { type: "button", onclick: () => close(dialog, null), autofocus: true }, "Cancel"),
      h("button", { class: danger ? "primary danger" : "primary" }, action)));
  dialog.append(form);
  return Boolean(await open(dialog));
}

/**
 * Shows a form, and runs `submit` with the values. The dialog stays open while that fails, and shows the error.
 * A field has `name`, `label`, and perhaps `value`, `type` (text, number, area, check, select, password) and `options`.
 */
export async function ask(title, fields, action, submit) {
  const dialog = h("dialog", { "aria-label": title });
  const problem = h("div", { role: "alert" });
  const inputs = {};
  const rows = fields.map((field) => {
    const id = `field-${field.name}`;
    let input;
    if (field.type === "area") input = h("textarea", { id, value: field.value ?? "" });
    else if (field.type === "select") {
      input = h("select", { id }, field.options.map((option) => h("option", { value: option }, option)));
      input.value = field.value ?? field.options[0];
    } else if (field.type === "check") {
      input = h("input", { id, type: "checkbox", checked: Boolean(field.value) });
      inputs[field.name] = input;
      return h("label", { class: "check" }, input, field.label);
    } else if (field.type === "password") {
      input = h("input", { id, type: "password", autocomplete: "new-password" });
    } else input = h("input", { id, type: "text", inputmode: field.type === "number" ? "numeric" : null,
      value: field.value ?? "", autocomplete: "off", spellcheck: "false" });
    inputs[field.name] = input;
    return h("label", { class: "field" }, field.label, input);
  });
  const send = h("button", { class: "primary" }, action);
  dialog.append(h("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      const values = {};
      for (const [name, input] of Object.entries(inputs)) {
        values[name] = input.type === "checkbox" ? input.checked : input.value;
      }
      send.disabled = true;
      try {
        await submit(values);
        close(dialog, true);
      } catch (error) {
        replace(problem, h("div", { class: "note bad" }, error.message));
      }
      send.disabled = false;
    },
  }, h("h2", {}, title), rows, problem, h("div", { class: "tools" },
    h("button", { type: "button", onclick: () => close(dialog, null) }, "Cancel"), send)));
  return Boolean(await open(dialog));
}

/** Says a short message to the eye and to a screen reader. */
export function say(text) {
  const status = document.getElementById("status");
  if (status) status.textContent = text;
}
