// Charts over time on uPlot. All charts of a view share the cursor and the span.

import { h, replace } from "./dom.js";
import { clock } from "./format.js";

const HEIGHT = 172;

export const COLOURS = [1, 2, 3, 4, 5, 6, 7].map((number) => `--series-${number}`);

// Steps of an axis for bytes: powers of two.
const BYTE_STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);

const styleOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/**
 * A chart. `spec`: `title`, `unit`, `series` (each `label`, and perhaps `dash`, `colour`), `format(value)`, `stacked`.
 * `events`: `onselect(from, to)` after a drag, `onclick(ms, pixels)`; `markers()` returns the events to draw.
 */
export class Chart {
  constructor(spec, events) {
    this.spec = spec;
    this.events = events;
    this.data = null;
    this.values = h("div", { class: "legend" });
    this.time = h("time", { class: "unit push" });
    this.plot = h("div", { class: "plot", role: "img", "aria-label": `${spec.title}, over time` });
    this.element = h("section", { class: "panel chart" },
      h("header", {}, h("h2", {}, spec.title), h("span", { class: "unit" }, spec.unit), this.time), this.plot, this.values);
    this.numbers = spec.series.map((_, at) => h("b", {}, "\u2013"));
    replace(this.values, spec.series.map((series, at) => h("span", {}, swatch(this.colourOf(at)),
      series.label, " ", this.numbers[at])));
  }

  colourOf(at) {
    return this.spec.series[at].colour ?? COLOURS[at % COLOURS.length];
  }

  /** Draws `times` (ms) and a list of values per series, null for unknown. */
  set(times, lists, from, to) {
    this.lists = lists;
    this.span = [from / 1000, to / 1000];
    const seconds = times.map((ms) => ms / 1000);
    this.data = [seconds, ...(this.spec.stacked ? stack(lists) : lists)];
    if (!this.uplot) this.create();
    else this.uplot.setData(this.data, false);
    this.uplot.batch(() => {
      this.uplot.setScale("x", { min: this.span[0], max: this.span[1] });
    });
    this.showValues(this.uplot.cursor.idx);
  }

  create() {
    const text = styleOf("--muted"), grid = { stroke: styleOf("--grid"), width: 1 };
    const axis = { stroke: text, grid, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const lines = this.spec.series.map((series, at) => {
      const colour = styleOf(this.colourOf(at));
      return { label: series.label, stroke: colour, width: this.spec.stacked ? 1 : 1.5, points: { show: false },
        dash: series.dash, fill: this.spec.stacked ? `${colour}b8` : undefined, spanGaps: false };
    });
    // The largest sum is drawn first, and smaller sums over it.
    const shown = this.spec.stacked ? lines.map((line, at) => ({ ...line, fill: undefined, at })) : lines;
    const bands = this.spec.stacked ? lines.map((line, at) => ({
      series: at === 0 ? [1, -1] : [at + 1, at], fill: line.fill })).filter((band) => band.series[1] > 0) : [];
    if (this.spec.stacked) shown[0].fill = lines[0].fill;
    this.uplot = new window.uPlot({
      width: this.width(), height: HEIGHT, padding: [8, 28, 0, 0], legend: { show: false },
      cursor: { sync: { key: "time", setSeries: false, filters: { pub: isMove } }, drag: { x: true, y: false, setScale: false },
        y: false, points: { size: 6 } },
      scales: { x: { time: true, auto: false }, y: { range: (_, min, max) => this.rangeOf(max) } },
      axes: [
        { ...axis, space: 46, size: 24, values: (_, splits, __, ___, step) => splits.map((at) => label(at, step)) },
        { ...axis, size: 62, space: 34, incrs: this.spec.isBytes ? BYTE_STEPS : undefined,
          values: (_, splits) => splits.map((value) => tick(this.spec.format(value))) },
      ],
      series: [{}, ...shown], bands,
      hooks: {
        setSelect: [(u) => this.selected(u)],
        setCursor: [(u) => this.showValues(u.cursor.idx)],
        draw: [(u) => this.drawMarkers(u)],
        ready: [(u) => {
          u.over.addEventListener("mousedown", () => { this.isDrag = false; });
          // A click follows each drag, too.
          u.over.addEventListener("click", (event) => this.clicked(u, event));
        }],
      },
    }, this.data, this.plot);
  }

  rangeOf(max) {
    const least = this.spec.least ?? 1;
    return [0, Math.max(least, (max ?? 0) * 1.1)];
  }

  width() {
    return Math.max(200, this.plot.clientWidth - 12);
  }

  selected(u) {
    const { left, width } = u.select;
    if (width < 4) return;
    const [from, to] = [u.posToVal(left, "x") * 1000, u.posToVal(left + width, "x") * 1000];
    this.isDrag = true;
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.events.onselect(from, to);
  }

  clicked(u, event) {
    if (this.isDrag) return;
    const left = event.clientX - u.over.getBoundingClientRect().left;
    const msPerPixel = 1000 * (u.posToVal(1, "x") - u.posToVal(0, "x"));
    this.events.onclick(u.posToVal(left, "x") * 1000, msPerPixel);
  }

  drawMarkers(u) {
    const context = u.ctx, ratio = devicePixelRatio || 1, { left, top, width, height } = u.bbox;
    context.save();
    context.strokeStyle = context.fillStyle = styleOf("--danger");
    context.lineWidth = ratio;
    context.globalAlpha = 0.75;
    context.setLineDash([3 * ratio, 3 * ratio]);
    for (const event of this.events.markers()) {
      const x = Math.round(u.valToPos(event.at / 1000, "x", true));
      if (x < left || x > left + width) continue;
      context.beginPath();
      context.moveTo(x, top);
      context.lineTo(x, top + height);
      context.stroke();
      context.beginPath();
      context.moveTo(x - 4 * ratio, top - 6 * ratio);
      context.lineTo(x + 4 * ratio, top - 6 * ratio);
      context.lineTo(x, top);
      context.fill();
    }
    context.restore();
  }

  /** Shows the values at the cursor, or the last values. */
  showValues(at) {
    const last = (list) => { for (let i = list.length - 1; i >= 0; i--) if (list[i] !== null) return list[i]; };
    const ms = at === null || at === undefined ? null : this.data[0][at] * 1000;
    this.time.textContent = ms === null ? "" : clock(ms, ms % 1000 !== 0);
    this.lists?.forEach((list, number) => {
      const value = at === null || at === undefined ? last(list) : list[at];
      this.numbers[number].textContent = value === null || value === undefined ? "\u2013" : this.spec.format(value);
    });
  }

  resize() {
    this.uplot?.setSize({ width: this.width(), height: HEIGHT });
  }

  redraw() {
    this.uplot?.redraw(false);
  }

  /** Draws again in the colours of now. */
  recolour() {
    if (!this.uplot) return;
    this.destroy();
    this.create();
    this.uplot.setScale("x", { min: this.span[0], max: this.span[1] });
  }

  destroy() {
    this.uplot?.destroy();
    this.uplot = null;
  }
}

// A drag belongs to its chart alone.
const isMove = (type) => type === "mousemove" || type === "mouseleave";

function label(at, step) {
  const ms = at * 1000;
  if (step >= 86400) return new Date(ms).toLocaleDateString("en-CA").slice(5);
  return step < 1 ? clock(ms, true) : step >= 60 ? clock(ms).slice(0, 5) : clock(ms);
}

/** Returns the text of a tick: without zeros behind the point, and zero without a unit. */
function tick(text) {
  return parseFloat(text) === 0 ? "0" : text.replace(/\.0+(?=\D|$)/, "");
}

function stack(lists) {
  const sums = [];
  lists.forEach((list, number) => {
    sums.push(list.map((value, at) => value === null ? null : value + (number ? sums[number - 1][at] ?? 0 : 0)));
  });
  return sums;
}

export function swatch(colour) {
  const mark = h("span", { class: "swatch", "aria-hidden": "true" });
  mark.style.background = `var(${colour})`;
  return mark;
}
