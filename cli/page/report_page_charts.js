// How it is drawn: SVG, tables, tooltips. Nothing here knows what a run is.

const SVG = "http://www.w3.org/2000/svg";
const CHARACTER = 6.6; // pixels, of the small type, at most on average

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const text = (x, y, content, kind = "", anchor = "start") =>
  svg("text", { x, y, class: kind, "text-anchor": anchor }, content);
const line = (x1, y1, x2, y2, kind) => svg("line", { x1, y1, x2, y2, class: kind });
const rect = (x, y, width, height, attributes) => svg("rect", { x, y, width, height, ...attributes });
const colour = (key) => `var(--${key})`;
const DARK = ["parameter", "compute", "buffer"]; // light type on these, in the light scheme

const spoken = ({ title, rows }) => [title, ...rows.map((row) => row.join(" "))].join(", ");

// A part of a chart that shows its value on hover, touch and focus. `rows` are [name, value]; `data` is kept on it.
function mark(title, rows, data, ...children) {
  const tip = { title, rows };
  const node = svg("g", { class: "tip", role: "img", tabindex: -1, "aria-label": spoken(tip) }, ...children);
  Object.assign(node.dataset, data);
  node.tip = tip;
  return node;
}

// One tab stop for the marks of a chart: arrow keys go from mark to mark.
function chartSvg(label, width, height, ...children) {
  const frame = { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label };
  const node = svg("svg", frame, ...children);
  const marks = [...node.querySelectorAll(".tip:not(.scrub)")];
  marks.forEach((each, i) => each.setAttribute("tabindex", i ? -1 : 0));
  node.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const next = marks[marks.indexOf(event.target) + step];
    if (!marks.includes(event.target) || !step) return;
    event.preventDefault();
    if (!next) return;
    event.target.setAttribute("tabindex", -1);
    next.setAttribute("tabindex", 0);
    next.focus();
  });
  return node;
}

// Redrawn when its width changes.
function chart(draw) {
  const holder = html("figure", { class: "chart" });
  let drawn = 0;
  const redraw = () => {
    const width = Math.max(240, Math.floor(holder.clientWidth));
    if (width !== drawn) holder.replaceChildren(draw((drawn = width)));
  };
  new ResizeObserver(redraw).observe(holder);
  holder.redraw = () => ((drawn = 0), redraw());
  return holder;
}

function legend(entries) {
  const stroke = (key, dash) => ({ class: "curve", stroke: colour(key), "stroke-dasharray": dash });
  const sample = ({ key, dash }) =>
    dash === undefined
      ? rect(0, 0, 12, 12, { rx: 2, fill: colour(key) })
      : svg("line", { x1: 0, y1: 6, x2: 26, y2: 6, ...stroke(key, dash) });
  const swatch = (entry) =>
    svg("svg", { width: entry.dash === undefined ? 12 : 26, height: 12, "aria-hidden": "true" }, sample(entry));
  return html("ul", { class: "legend" }, ...entries.map((entry) => html("li", {}, swatch(entry), entry.name)));
}

// The first `left` columns are text.
function table(label, headers, rows, left = 1) {
  const style = (i) => ({ class: [i < left && "left", i === 0 && "name"].filter(Boolean).join(" ") || undefined });
  const row = (cells) => html("tr", {}, ...cells.map((cell, i) => html("td", style(i), cell)));
  const head = html("tr", {}, ...headers.map((cell, i) => html("th", { ...style(i), scope: "col" }, cell)));
  const body = html("table", {}, html("thead", {}, head), html("tbody", {}, ...rows.map(row)));
  return html("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, body);
}

const asTable = (...content) => html("details", {}, html("summary", {}, "As a table"), table(...content));

// Round values from 0 (or `from`) to `to`, about `count` of them, of `unit`.
function ticks(to, count, unit = 1, from = 0) {
  const rough = Math.max((to - from) / unit / count, 1e-12);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((each) => each * power >= rough * 0.999) * unit;
  const first = Math.ceil(from / step - 1e-9);
  return Array.from({ length: Math.max(0, Math.floor(to / step + 1e-9) - first + 1) }, (_, i) => (first + i) * step);
}
const byteTicks = (to, count, from) => ticks(to, count, 1024 ** byteUnit(to), from);
function byteTick(to) {
  const power = byteUnit(to);
  return (value) => (value === 0 ? "0" : `${+(value / 1024 ** power).toFixed(2)} ${UNITS[power]}`);
}

// How values are written, and where an axis has its ticks.
const BYTES = { short: humanBytes, long: exactBytes, tick: byteTick, ticks: byteTicks };
const SECONDS = {
  short: humanSeconds, long: humanSeconds,
  ticks: (to, count, from) => ticks(to, count, to < 1 ? 1e-3 : 1, from),
  tick: (to) => (value) => (to < 1 ? `${+(value * 1e3).toFixed(3)} ms` : `${+value.toFixed(3)} s`),
};

const LEFT = 78, ROW = { predicted: 13, measured: 22 }, GAP = 3;
const shortened = (label, width) => {
  const room = Math.floor(width / CHARACTER);
  return label.length <= room ? label : label.slice(0, Math.max(1, room - 1)) + "…";
};

function piece(group, bar, part, x, y, scale, format) {
  const height = bar.height, size = Math.max(1, part.value * scale);
  const value = format.short(part.value);
  const label = [`${part.name} ${value}`, value].find((each) => each.length * CHARACTER + 8 < size);
  const type = `inside${DARK.includes(part.key) ? " on-dark" : ""} ${part.key}`;
  const rows = [[part.name, format.long(part.value)]];
  if (part.value !== bar.total) rows.push(["of the bar", `${fixed((100 * part.value) / bar.total, 1)} %`]);
  const style = part.whole ? { class: "whole" } : { class: "piece", fill: colour(part.key) };
  const data = { run: group.name, series: bar.name, part: part.name, value: part.value };
  const written = label && height >= 20 ? text(x + 6, y + height / 2 + 4, label, type) : null;
  return mark(`${group.name}, ${bar.name}`, rows, data, rect(x, y, size, height, style), written);
}

function drawBar(group, bar, y, scale, format) {
  const nodes = [text(LEFT - 8, y + bar.height / 2 + 4, bar.name, "soft", "end")];
  let x = LEFT;
  for (const part of bar.parts) {
    nodes.push(piece(group, bar, part, x, y, scale, format));
    x += part.value * scale;
  }
  for (const limit of bar.limits ?? []) {
    const at = LEFT + limit.value * scale;
    const data = { run: group.name, series: bar.name, part: limit.name, value: limit.value };
    const upright = line(at, y - 2, at, y + bar.height + 2, "limit");
    const hit = rect(at - 6, y - 3, 12, bar.height + 6, { class: "hit" });
    nodes.push(mark(`${group.name}, ${bar.name}`, [[limit.name, format.long(limit.value)]], data, upright, hit));
    x = Math.max(x, at);
  }
  nodes.push(text(x + 7, y + bar.height / 2 + 4, bar.label, bar.height >= 20 ? "" : "soft"));
  return svg("g", { class: bar.height >= 20 ? "" : "predicted" }, ...nodes);
}

// groups: [{name, bars: [{name, label, parts: [{key, name, value}], limits: [{name, value}]}]}], horizontally, in one
// scale. Parts of size 0 are left out. The bars of a prediction are thinner.
function stackedBars(label, groups, format) {
  const total = (bar) => sum(bar.parts.map((part) => part.value));
  const end = (bar) => Math.max(total(bar), ...(bar.limits ?? []).map((limit) => limit.value));
  const bars = groups.flatMap((group) => group.bars);
  const most = Math.max(...bars.map(end)) || 1;
  const right = 16 + CHARACTER * Math.max(...bars.map((bar) => bar.label.length));
  return chart((width) => {
    const room = width - LEFT - right, scale = room / most, nodes = [];
    let y = 4;
    for (const group of groups) {
      nodes.push(text(0, y + 12, shortened(group.name, width / 1.25), "name"));
      y += 20;
      for (const bar of group.bars) {
        const parts = bar.parts.filter((part) => part.value > 0);
        const drawn = { ...bar, parts, height: ROW[bar.name] ?? ROW.measured, total: total(bar) };
        nodes.push(drawBar(group, drawn, y, scale, format));
        y += drawn.height + GAP;
      }
      y += 9;
    }
    const grid = format.ticks(most, Math.max(2, Math.floor(room / 130))).flatMap((value) => [
      line(LEFT + value * scale, 0, LEFT + value * scale, y, value ? "grid" : "axis"),
      text(LEFT + value * scale, y + 14, format.tick(most)(value), "tick", "middle"),
    ]);
    return chartSvg(label, width, y + 20, ...grid, ...nodes);
  });
}

// A strip over a plot from which a value along x can be picked by pointer and by keys. `tipAt(i)` gives {title, rows}.
function scrubber(label, plot, count, xOf, tipAt) {
  const cursor = line(0, plot.top, 0, plot.top + plot.height, "cursor");
  cursor.setAttribute("visibility", "hidden");
  const area = rect(plot.left, plot.top, plot.width, plot.height, { class: "hit" });
  const range = { "aria-label": label, "aria-valuemin": 1, "aria-valuemax": count };
  const strip = svg("g", { class: "tip scrub", role: "slider", tabindex: 0, ...range }, area, cursor);
  let at = 0;
  const show = (i) => {
    at = Math.min(count - 1, Math.max(0, i));
    const tip = tipAt(at), x = xOf(at);
    fill(cursor, { x1: x, x2: x, visibility: "visible" }, []);
    fill(strip, { "aria-valuenow": at + 1, "aria-valuetext": spoken(tip) }, []);
    strip.tip = tip;
  };
  const nearest = (x) => {
    let low = 0, high = count - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xOf(middle) <= x) low = middle;
      else high = middle;
    }
    return x - xOf(low) <= xOf(high) - x ? low : high;
  };
  strip.aim = (event) => show(nearest(event.clientX - strip.ownerSVGElement.getBoundingClientRect().left));
  strip.leave = () => cursor.setAttribute("visibility", "hidden");
  strip.anchor = () => cursor.getBoundingClientRect();
  strip.addEventListener("focus", () => show(at));
  strip.addEventListener("keydown", (event) => {
    const far = Math.max(1, Math.round(count / 10));
    const pages = { PageUp: far, PageDown: -far, Home: -at, End: count };
    const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, ...pages };
    if (!(event.key in steps)) return;
    event.preventDefault();
    show(at + steps[event.key]);
    tooltip.show(strip);
  });
  show(0);
  strip.leave();
  return strip;
}

const tooltip = {
  node: document.getElementById("tooltip"),
  owner: null,
  show(owner) {
    if (this.owner && this.owner !== owner) this.hide();
    this.owner = owner;
    const { title, rows } = owner.tip;
    this.node.replaceChildren(html("table", {}, html("tr", {}, html("th", { colspan: 2 }, title)),
      ...rows.map((row) => html("tr", {}, ...row.map((cell) => html("td", {}, cell))))));
    this.node.hidden = false;
    owner.setAttribute("aria-describedby", "tooltip");
    this.place(owner.anchor ? owner.anchor() : owner.getBoundingClientRect());
  },
  follow() {
    if (this.owner && this.owner === document.activeElement) this.show(this.owner);
    else this.hide();
  },
  place(box) {
    const { offsetWidth: width, offsetHeight: height } = this.node;
    const within = (value, most) => Math.max(8, Math.min(value, most - 8));
    const above = box.top - height - 8, below = Math.max(8, box.top) + Math.min(box.height, 60) + 10;
    const left = within(box.left + box.width / 2 - width / 2, document.documentElement.clientWidth - width);
    this.node.style.left = `${left}px`;
    this.node.style.top = `${above >= 8 ? above : within(below, innerHeight - height)}px`;
  },
  hide() {
    this.owner?.leave?.();
    this.owner?.removeAttribute("aria-describedby");
    this.owner = null;
    this.node.hidden = true;
  },
};

function listenForTips() {
  const owner = (event) => event.target.closest?.(".tip");
  const point = (event) => {
    const at = owner(event);
    if (!at) return tooltip.hide();
    at.aim?.(event);
    tooltip.show(at);
  };
  for (const name of ["pointermove", "pointerdown"]) document.addEventListener(name, point);
  document.addEventListener("focusin", (event) => owner(event) && tooltip.show(owner(event)));
  document.addEventListener("focusout", () => tooltip.hide());
  document.addEventListener("keydown", (event) => event.key === "Escape" && tooltip.hide());
  document.addEventListener("scroll", () => tooltip.follow(), { passive: true, capture: true });
}
