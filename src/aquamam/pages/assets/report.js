"use strict";
// What pages of figures share: elements, numbers, charts, cases. Text enters a page only through textContent: names are anyone's.
const D = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page"), tip = document.getElementById("tip");

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [k, v] of Object.entries(attributes)) node.setAttribute(k, v);
  node.append(...children.filter(c => c !== null && c !== undefined));
  return node;
}
function svg(tag, attributes = {}, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [k, v] of Object.entries(attributes)) node.setAttribute(k, v);
  if (text !== undefined) node.textContent = text;
  return node;
}
const missing = v => v === null || v === undefined;
const num = (v, digits = 2) => missing(v) ? "–" : v.toFixed(digits).replace(/^-(?=0\.?0*$)/, "").replace("-", "−");
const pct = (v, digits = 1) => missing(v) ? "–" : (100 * v).toFixed(digits) + " %";
const deg = v => missing(v) ? "–" : num(v, v < 10 ? 2 : 1) + "°";
const many = v => missing(v) ? "–" : Number(v).toLocaleString("en-US");

// --- tip --------------------------------------------------------------------

function show(event, ...content) {
  tip.replaceChildren(...content);
  tip.style.display = "block";
  const above = event.clientY - tip.offsetHeight - 14;
  tip.style.left = Math.max(8, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = (above > 4 ? above : event.clientY + 18) + "px";
}
const hide = () => { tip.style.display = "none"; };

// --- charts -----------------------------------------------------------------

const H = 250, M = { left: 44, right: 14, top: 12, bottom: 38 };
const path = points => "M" + points.map(p => p.map(v => v.toFixed(1)).join(" ")).join("L");
const nearest = (values, at) => values.reduce((best, v, i) => Math.abs(v - at) < Math.abs(values[best] - at) ? i : best, 0);
function niceTicks(min, max, count = 6) {
  const raw = Math.max(max - min, 1e-9) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(k => k * power).find(s => s >= raw - 1e-12), ticks = [];
  for (let v = Math.ceil(min / step - 1e-9) * step; v <= max + 1e-9; v += step) ticks.push(+(Math.round(v / step) * step).toPrecision(12));
  return ticks;
}
function legendOf(names) {
  return el("div", { class: "legend" }, ...names.map(([name, colour]) => el("span", {}, el("i", { class: "line", style: `background:${colour}` }), name)));
}
/** A card with a chart: draw(root, X, Y) adds the curves, probe(x) says what the pointer finds. */
function chart({ title, note, x, y, xLabel, xTicks, yTicks, xFormat, yFormat, draw, probe, legend, wide = 480 }) {
  const root = svg("svg", { viewBox: `0 0 ${wide} ${H}`, role: "img", "aria-label": title });
  const unit = v => x.log ? Math.log(v / x.min) / Math.log(x.max / x.min) : (v - x.min) / (x.max - x.min);
  const X = v => M.left + unit(v) * (wide - M.left - M.right);
  const Y = v => H - M.bottom - (v - y.min) / (y.max - y.min) * (H - M.top - M.bottom);
  for (const v of yTicks) {
    root.append(svg("line", { x1: M.left, x2: wide - M.right, y1: Y(v), y2: Y(v), class: "grid" }));
    root.append(svg("text", { x: M.left - 7, y: Y(v) + 4, "text-anchor": "end" }, yFormat(v)));
  }
  root.append(svg("line", { x1: M.left, x2: wide - M.right, y1: H - M.bottom, y2: H - M.bottom, class: "axis" }));
  for (const v of xTicks) {
    root.append(svg("line", { x1: X(v), x2: X(v), y1: H - M.bottom, y2: H - M.bottom + 4, class: "axis" }));
    root.append(svg("text", { x: X(v), y: H - M.bottom + 17, "text-anchor": "middle" }, xFormat(v)));
  }
  root.append(svg("text", { x: (M.left + wide - M.right) / 2, y: H - 4, "text-anchor": "middle" }, xLabel));
  draw(root, X, Y);
  const line = svg("line", { y1: M.top, y2: H - M.bottom, class: "probe" });
  root.append(line);
  const leave = () => { line.style.visibility = "hidden"; hide(); };
  root.addEventListener("pointermove", event => {
    const box = root.getBoundingClientRect();
    const share = ((event.clientX - box.left) * wide / box.width - M.left) / (wide - M.left - M.right);
    if (share < 0 || share > 1) { leave(); return; }
    const found = probe(x.log ? x.min * (x.max / x.min) ** share : x.min + share * (x.max - x.min));
    line.setAttribute("x1", X(found.x)); line.setAttribute("x2", X(found.x)); line.style.visibility = "visible";
    show(event, found.text);
  });
  root.addEventListener("pointerleave", leave);
  return el("div", { class: "card" }, title ? el("h3", {}, title) : null, note ? el("p", {}, note) : null, root, legend ? legendOf(legend) : null);
}

// --- tiles, tables, cases -----------------------------------------------------

const tile = (value, name, more) => el("div", { class: "card tile" }, el("b", {}, value), el("span", {}, name), el("span", {}, more));
const row = (cells, mean) => el("tr", mean ? { class: "mean" } : {}, ...cells.map(c => c instanceof Node ? c : el("td", {}, c)));
const table = (head, rows) => el("div", { class: "card scroll" }, el("table", {}, el("tr", {}, ...head.map(h => el("th", {}, h))), ...rows));
function cases(list, name = () => null) {
  const view = (source, caption) => source ? el("figure", {}, el("img", { src: source, alt: caption }), el("figcaption", {}, caption)) : null;
  return el("div", { class: "cases" }, ...list.map(c => el("div", { class: "card case" },
    el("div", { class: "views" }, view(c.image, "image"), view(c.truth_image, "truth"), view(c.prediction_image, "prediction")),
    el("div", { class: "facts" },
      el("span", {}, "error ", el("b", {}, deg(c.error_deg))), el("span", {}, "LL ", el("b", {}, num(c.log_likelihood))),
      missing(c.found) ? null : el("span", {}, el("b", {}, pct(c.found, 0)), " of samples near the truth"), name(c)))));
}
const worstCases = (worst, unlikely, name) => [
  el("h2", {}, "Largest errors"),
  el("p", { class: "soft" }, "A large error is no fault where the view does not tell: then many samples lie near the truth all the same."),
  cases(worst, name),
  el("h2", {}, "Least likely truths"), el("p", { class: "soft" }, "Here the truth surprised the model most."),
  cases(unlikely, name)];
