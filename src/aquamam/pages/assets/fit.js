// The page of a fitted part.
// --- maps by view direction -----------------------------------------------------

const HUES = ["#dfe7f3", "#9dbfe2", "#5b93cf", "#2a63a8", "#163d75"], CURVE = "#e08a3c";
const RAMP = [[0, "#e9f3ea"], [0.25, "#a8d5b5"], [0.5, "#f3d98b"], [0.75, "#e7894b"], [1, "#b3262e"]];
const rgb = hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16));
function ramp(share) {
  const s = Math.min(1, Math.max(0, share)), k = Math.max(1, RAMP.findIndex(([at]) => at >= s));
  const [a, low] = RAMP[k - 1], [b, high] = RAMP[k], t = (s - a) / (b - a), l = rgb(low), h = rgb(high);
  return l.map((v, i) => Math.round(v + t * (h[i] - v)));
}

// Mollweide: the object's z in the middle, y at the top, x on the right.
function towards(px, py) {
  const x = 2 * px - 1, y = 1 - 2 * py;
  if (x * x + y * y > 1) return null;
  const theta = Math.asin(y), latitude = Math.asin((2 * theta + Math.sin(2 * theta)) / Math.PI);
  const longitude = Math.cos(theta) < 1e-9 ? 0 : Math.PI * x / Math.cos(theta);
  return Math.abs(longitude) > Math.PI ? null : [Math.cos(latitude) * Math.sin(longitude), Math.sin(latitude), Math.cos(latitude) * Math.cos(longitude)];
}
function nearestView(d) {
  let best = -2, at = 0;
  D.views.directions.forEach(([x, y, z], i) => { const c = x * d[0] + y * d[1] + z * d[2]; if (c > best) { best = c; at = i; } });
  return at;
}
const WIDE = 480, HIGH = 240;
let cells;
function cellMap() {
  if (cells) return cells;
  cells = new Int16Array(WIDE * HIGH).fill(-1);
  for (let row = 0; row < HIGH; row++) for (let column = 0; column < WIDE; column++) {
    const d = towards((column + 0.5) / WIDE, (row + 0.5) / HIGH);
    if (d) cells[row * WIDE + column] = nearestView(d);
  }
  return cells;
}
function map(title, note, colour, words, legend) {
  const canvas = el("canvas", { width: WIDE, height: HIGH, role: "img", "aria-label": title });
  const context = canvas.getContext("2d"), image = context.createImageData(WIDE, HIGH), where = cellMap();
  for (let i = 0; i < where.length; i++) if (where[i] >= 0) {
    image.data.set([...colour(where[i]), 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
  const at = event => {
    const box = canvas.getBoundingClientRect();
    const d = towards((event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
    if (!d) { hide(); return; }
    const cell = nearestView(d);
    show(event, ...(D.thumbs ? [thumbnail(cell)] : []), words(cell));
  };
  canvas.addEventListener("pointermove", at);
  canvas.addEventListener("pointerdown", at);
  canvas.addEventListener("pointerleave", hide);
  const holder = el("div", { class: "map" }, canvas);
  for (const [text, x, y] of [["+z", 50, 50], ["+x", 75, 50], ["−x", 25, 50], ["+y", 50, 5], ["−y", 50, 95]])
    holder.append(el("span", { class: "axis", style: `left:${x}%;top:${y}%` }, text));
  return el("div", { class: "card" }, el("h3", {}, title), el("p", {}, note), holder, legend);
}
function thumbnail(cell) {
  const { sheet, columns, rows } = D.thumbs, thumb = el("div", { class: "thumb" });
  thumb.style.backgroundImage = `url(${sheet})`;
  thumb.style.backgroundSize = `${columns * 80}px ${rows * 80}px`;
  thumb.style.backgroundPosition = `-${cell % columns * 80}px -${Math.floor(cell / columns) * 80}px`;
  return thumb;
}
const kindWords = kind => kind === "curve" ? "a curve of rotations" : kind === "1" ? "one rotation" : kind + " rotations";
function ambiguityMap() {
  const kinds = Object.keys(D.views.shares).sort((a, b) => (a === "curve") - (b === "curve") || a - b), points = kinds.filter(k => k !== "curve");
  const tint = kind => kind === "curve" ? CURVE : HUES[Math.min(HUES.length - 1, points.length < 2 ? 1 : Math.round(points.indexOf(kind) * (HUES.length - 1) / (points.length - 1)))];
  const keys = el("div", { class: "legend" });
  for (const kind of kinds) keys.append(el("span", {}, el("i", { style: `background:${tint(kind)}` }), `${kindWords(kind)}, ${pct(D.views.shares[kind], 0)}`));
  return map("How many rotations look the same", "By the side from which the part is seen: each point is a direction to the camera, in the part's own axes.",
    i => rgb(tint(D.views.kinds[i])), i => kindWords(D.views.kinds[i]), keys);
}
function errorMap() {
  const errors = D.cells.error_deg, known = errors.filter(v => v !== null), low = Math.min(...known), high = Math.max(...known, low + 1e-3);
  const share = v => high / Math.max(low, 0.01) > 8 ? Math.log(Math.max(v, 0.01) / Math.max(low, 0.01)) / Math.log(high / Math.max(low, 0.01)) : (v - low) / (high - low);
  const bar = el("div", { class: "ramp", style: `background:linear-gradient(90deg, ${RAMP.map(([at, c]) => `${c} ${100 * at}%`).join(", ")})` });
  return map("Mean error by view direction", "Angle from the prediction to the nearest equivalent of the truth, on held-out renders.",
    i => errors[i] === null ? [150, 150, 150] : ramp(share(errors[i])),
    i => errors[i] === null ? "no held-out image" : `mean error ${deg(errors[i])}\nmean LL ${num(D.cells.log_likelihood[i])}\n${D.cells.images[i]} images`,
    el("div", { class: "legend" }, deg(low), bar, deg(high)));
}

// --- learning curve and coverage ----------------------------------------------

function learning() {
  const curve = D.curve, last = Math.max(curve.at(-1).minutes, 1e-9), wide = innerWidth > 720 ? 1060 : 480;
  const top = Math.max(...curve.map(c => Math.max(c.valid, c.train)), D.uniform + 1), low = Math.min(D.uniform, ...curve.map(c => c.valid)) - 0.3;
  const colours = { train: "var(--mark)", valid: "var(--blue)" };
  const trained = `training renders, labels smoothed at first${D.settings.model.pose ? "; where the part is counts, too" : ""}`;
  return chart({
    wide, xLabel: "minutes of training", x: { min: 0, max: last }, y: { min: low, max: top + 0.3 },
    xTicks: niceTicks(0, last, wide > 600 ? 10 : 5), yTicks: niceTicks(low, top, 5), xFormat: v => +v.toPrecision(3), yFormat: v => +v.toFixed(2),
    draw(root, X, Y) {
      root.append(svg("line", { x1: X(0), x2: X(last), y1: Y(D.uniform), y2: Y(D.uniform), class: "mark" }));
      root.append(svg("text", { x: X(last), y: Y(D.uniform) - 5, "text-anchor": "end" }, "uniform: knowing nothing"));
      for (const [name, colour] of Object.entries(colours)) {
        root.append(svg("path", { d: path(curve.map(c => [X(c.minutes), Y(Math.max(c[name], low))])), class: "curve", stroke: colour }));
        if (curve.length < 12) curve.forEach(c => root.append(svg("circle", { cx: X(c.minutes), cy: Y(Math.max(c[name], low)), r: 3, fill: colour })));
      }
    },
    probe(at) {
      const c = curve[nearest(curve.map(c => c.minutes), at)];
      return { x: c.minutes, text: `${num(c.minutes, 1)} min, ${many(c.images)} images\nheld-out LL ${num(c.valid)}\ntraining LL ${num(c.train)}` };
    },
    legend: [["held-out renders", colours.valid], [trained, colours.train]],
  });
}

function coverage() {
  const levels = Object.keys(D.classes[0].coverage);
  const cell = (level, { share, se, within_two_se }) => {
    const reach = Math.max(4.5 * se, 0.02), place = v => 28 + 26 * Math.max(-1, Math.min(1, (v - level) / reach));
    const bar = el("span", { class: "bar", "aria-hidden": "true" }, el("i", { style: `left:${place(level - 2 * se)}px;width:${place(level + 2 * se) - place(level - 2 * se)}px` }), el("b", { style: "left:27px" }), el("u", { style: `left:${place(share)}px` }));
    return el("td", within_two_se ? {} : { class: "off" }, pct(share), el("small", {}, ` ± ${(100 * se).toFixed(1)}`), bar);
  };
  const rows = D.classes.map(each => row([each.words, many(each.images), num(each.mean_log_likelihood), deg(each.median_error_deg), deg(each.spread_deg),
    ...levels.map(l => cell(Number(l), each.coverage[l]))], each.kind === "all"));
  return table(["views that fit", "images", "mean LL", "median error", "spread", ...levels.map(l => `${Math.round(100 * l)} % set`)], rows);
}

// --- the page -----------------------------------------------------------------

const strip = (images, kind, what) => el("div", { class: "card strip " + kind }, ...images.map((source, i) => el("img", { src: source, alt: `${what} ${i + 1}` })));
const E = D.evaluation, T = D.training, S = D.part.symmetries, settings = D.settings;
const parts = [
  el("h1", {}, D.name),
  el("p", { class: "soft" }, `${many(D.part.triangles)} triangles from ${D.source}` + (T ? ` · ${many(T.parameters)} parameters, ${many(T.images)} renders in ${num(T.elapsed / 60, 1)} minutes` : "")
    + ` · ${settings.model.image_size} px, ${settings.plain === true ? "plain" : "photograph-like"} renders`),
];
if (D.note) parts.push(el("p", { class: "busy" }, D.note));
else if (!D.done) parts.push(el("p", { class: "busy" }, D.curve.length ? "Still training: this page loads itself anew." : "Still at work: this page loads itself anew."));
if (E) parts.push(el("div", { class: "tiles" },
  tile(deg(E.median_error_deg), "median error", `mean ${deg(E.mean_error_deg)}`),
  tile(pct(E.acc15), "within 15°", `${pct(E.acc30)} within 30°`),
  tile(num(E.mean_log_likelihood), "mean log-likelihood", `uniform ${num(D.uniform)}` + (E.ceiling === null ? "" : `, ceiling ${num(E.ceiling)}`)),
  tile(deg(E.spread_deg), "spread", "expected angle to the truth"),
  tile(pct(D.classes[0].coverage["0.9"].share), "in the 90 % set", `± ${pct(D.classes[0].coverage["0.9"].se)}`),
  tile(S.order === null ? "∞" : many(S.order), S.order === 1 ? "rotation: no symmetry" : "rotations look the same", S.name === "none" ? "" : S.name)));
parts.push(el("h2", {}, "The part"), strip(D.views_images || [], "", "view"),
  el("h2", {}, "What it was trained on"),
  el("p", { class: "soft" }, settings.plain === true ? "Plain renders in random rotations." : "Light, surface, background, occluders, camera and crop are drawn anew for every image, held-out ones too."),
  strip(D.examples, "small", "training image"),
  el("h2", {}, "Symmetries"),
  el("p", {}, D.part.headline + (D.part.words.length ? ":" : ".")));
if (D.part.words.length) parts.push(el("ul", {}, ...D.part.words.map(w => el("li", {}, w))));
parts.push(el("p", { class: "soft" }, `Found with a tolerance of ${num(100 * S.tolerance, 1)} % of the radius, colours ${S.of === "geometry" ? "not counted as there are none" : "included"}, and checked by rendering. For BOP's tools they are in models_info.json.`));
if (D.views) parts.push(el("h2", {}, "By view direction"), el("div", { class: "two" }, ambiguityMap(), D.cells ? errorMap() : null));
if (D.curve.length) parts.push(el("h2", {}, "Learning curve"), el("p", { class: "soft" }, "Mean log-likelihood of the true rotation, volume π²."), learning());
if (D.classes) parts.push(el("h2", {}, "Sets that hold the truth"),
  el("p", { class: "soft" }, `How often the calibrated sets of rotations hold the truth, on ${many(E.images)} renders that neither training nor calibration saw (${many(D.calibration.images)} others set the thresholds). `
    + "± is one standard error of both together; the band is two, the stroke what is promised."),
  coverage());
if (D.pictures) parts.push(...worstCases(D.pictures.worst, D.pictures.unlikely));
if (D.done) parts.push(el("h2", {}, "Use it"), el("div", { class: "card" }, el("pre", {},
  `aquamam predict photo.png --model ${D.folder}/\naquamam serve ${D.folder}/\naquamam evaluate ${D.folder}/\naquamam export ${D.folder}/ ${D.folder}.onnx`)),
  el("p", { class: "soft" }, `Rotations take the part's own axes to the camera (x right, y up, z towards the viewer). All curves are in `, el("a", { href: "evaluation.html" }, "evaluation.html"), `, all figures in fit.json. aquamam ${D.version}.`));
page.replaceChildren(...parts);
