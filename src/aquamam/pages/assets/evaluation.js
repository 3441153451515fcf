// The page of an evaluation.
const COLOURS = { greedy: "var(--blue)", beam: "var(--orange)", expected: "var(--green)" };
const WORDS = { greedy: "greedy", beam: "best of a beam", expected: "least expected error" };
const rate = v => missing(v) ? "–" : v >= 100 ? many(Math.round(v)) : v.toPrecision(2);

function bars(root, X, Y, edges, counts, colour) {
  const wide = X(edges[1]) - X(edges[0]), gap = Math.min(1.5, 0.15 * wide);
  counts.forEach((n, i) => n && root.append(svg("rect", {
    x: X(edges[i]) + gap / 2, width: wide - gap, y: Y(n), height: Math.max(0, Y(0) - Y(n)), rx: Math.min(1.5, wide / 6), fill: colour })));
}
function upright(root, X, v, text, anchor = "middle", row = 0) {
  root.append(svg("line", { x1: X(v), x2: X(v), y1: M.top + 4 + 13 * row, y2: H - M.bottom, class: "mark" }));
  root.append(svg("text", { x: X(v) + (anchor === "start" ? 4 : anchor === "end" ? -4 : 0), y: M.top + 8 + 13 * row, "text-anchor": anchor }, text));
}

function likelihoodChart() {
  const { edges, counts } = D.curves.log_likelihood, top = Math.max(...counts);
  const low = Math.min(edges[0], D.uniform) - 0.4, high = Math.max(edges.at(-1), D.ceiling ?? edges.at(-1)) + 0.6;
  const ticks = niceTicks(0, top, 4);
  return chart({
    title: "Log-likelihood of the truth", xLabel: "log density, volume π²",
    note: "One image a count. Uniform is what knowing nothing scores; the ceiling is the most that the model's cells can express.",
    x: { min: low, max: high }, y: { min: 0, max: top * 1.12 }, xTicks: niceTicks(low, high), yTicks: ticks,
    xFormat: v => v, yFormat: v => many(Math.round(v)),
    draw(root, X, Y) {
      bars(root, X, Y, edges, counts, "var(--blue)");
      upright(root, X, D.uniform, "uniform", "start");
      if (D.ceiling !== null) upright(root, X, D.ceiling, "ceiling", "end");
      upright(root, X, D.mean_log_likelihood, "mean " + num(D.mean_log_likelihood), "end", 1);
    },
    probe(at) {
      const i = Math.max(0, edges.findIndex(e => e > at) - 1), inside = at >= edges[0] && at <= edges.at(-1);
      return { x: at, text: inside ? `${num(edges[i])} to ${num(edges[i + 1])}: ${many(counts[i])} images` : num(at) };
    },
  });
}

function errorChart() {
  const { angles_deg: angles, shares } = D.curves.error, names = Object.keys(shares);
  return chart({
    title: "Share of predictions within an angle", xLabel: "angle in degrees (logarithmic)",
    note: D.symmetric ? "Angle to the nearest rotation that looks the same." : "Geodesic angle to the true rotation.",
    x: { min: angles[0], max: angles.at(-1), log: true }, y: { min: 0, max: 1 },
    xTicks: [0.1, 0.3, 1, 3, 5, 15, 30, 90, 180], yTicks: [0, 0.25, 0.5, 0.75, 1], xFormat: v => v, yFormat: v => pct(v, 0),
    draw(root, X, Y) {
      for (const name of [...names].reverse())
        root.append(svg("path", { d: path(angles.map((a, i) => [X(a), Y(shares[name][i])])), class: "curve", stroke: COLOURS[name] }));
    },
    probe(at) {
      const i = nearest(angles.map(Math.log), Math.log(at));
      return { x: angles[i], text: [`within ${num(angles[i], 1)}°`, ...names.map(n => `${pct(shares[n][i])}  ${n}`)].join("\n") };
    },
    legend: names.map(n => [WORDS[n], COLOURS[n]]),
  });
}

function pitChart() {
  const counts = D.curves.pit.counts, n = D.images, k = counts.length, mean = n / k;
  const noise = 2 * Math.sqrt(mean * (1 - 1 / k)), top = Math.max(...counts, mean + noise) * 1.1;
  const edges = Array.from({ length: k + 1 }, (_, i) => i / k);
  return chart({
    title: "Where the truth ranks", xLabel: "mass of the smallest highest-density region that holds the truth (PIT)",
    note: "Flat within the band (two standard errors) if calibrated. High on the right: too sure. High on the left: not sure enough.",
    x: { min: 0, max: 1 }, y: { min: 0, max: top }, xTicks: [0, 0.25, 0.5, 0.75, 1], yTicks: niceTicks(0, top, 4), xFormat: v => v, yFormat: v => many(Math.round(v)),
    draw(root, X, Y) {
      bars(root, X, Y, edges, counts, "var(--blue)");
      root.append(svg("rect", { x: X(0), width: X(1) - X(0), y: Y(mean + noise), height: Y(Math.max(0, mean - noise)) - Y(mean + noise), fill: "var(--mark)", opacity: 0.28 }));
      root.append(svg("line", { x1: X(0), x2: X(1), y1: Y(mean), y2: Y(mean), class: "mark" }));
    },
    probe(at) {
      const i = Math.min(k - 1, Math.floor(at * k));
      return { x: (i + 0.5) / k, text: `${num(edges[i])} to ${num(edges[i + 1])}: ${many(counts[i])} images\n${num(counts[i] / mean)} times what is expected` };
    },
  });
}

function coverageChart() {
  const { levels, shares, se } = D.curves.coverage, ticks = [0, 0.25, 0.5, 0.75, 1];
  return chart({
    title: "Coverage of highest-density regions", xLabel: "mass of the region",
    note: `The 50, 90 and 95 % regions hold ${pct(D.coverage50)}, ${pct(D.coverage90)} and ${pct(D.coverage95)} of the truths. On the dashed line if calibrated, below it if too sure; the band is two standard errors.`,
    x: { min: 0, max: 1 }, y: { min: 0, max: 1 }, xTicks: ticks, yTicks: ticks, xFormat: v => pct(v, 0), yFormat: v => pct(v, 0),
    draw(root, X, Y) {
      const edge = side => levels.map((l, i) => [X(l), Y(Math.min(1, Math.max(0, shares[i] + side * 2 * se[i])))]);
      root.append(svg("path", { d: path([...edge(1), ...edge(-1).reverse()]) + "Z", fill: "var(--band)" }));
      root.append(svg("line", { x1: X(0), x2: X(1), y1: Y(0), y2: Y(1), class: "mark" }));
      root.append(svg("path", { d: path(levels.map((l, i) => [X(l), Y(shares[i])])), class: "curve", stroke: "var(--blue)" }));
      for (const level of [50, 90, 95]) root.append(svg("circle", { cx: X(level / 100), cy: Y(D[`coverage${level}`]), r: 3.5, fill: "var(--blue)" }));
    },
    probe(at) {
      const i = nearest(levels, at);
      return { x: levels[i], text: `${pct(levels[i])} region\ncovers ${pct(shares[i])} ± ${pct(se[i])}` };
    },
  });
}

// --- tables and the page ------------------------------------------------------

const errorCells = e => [deg(e.mean_error_deg), deg(e.median_error_deg), pct(e.acc15), pct(e.acc30)];

function strategies() {
  const rows = Object.entries(D.strategies).map(([name, e]) =>
    row([WORDS[name] + (D.symmetric ? ", nearest equivalent" : ""), ...errorCells(e), rate(D.throughput.predictions[name])]));
  if (D.symmetric) for (const [name, e] of Object.entries(D.strategies)) rows.push(row([WORDS[name] + ", plain", ...errorCells(e.plain), ""]));
  return table(["prediction", "mean", "median", "Acc@15", "Acc@30", "images/s"], rows);
}

function classes() {
  const cells = (name, f) => [name, many(f.images), num(f.mean_log_likelihood), ...errorCells(f), deg(f.spread_deg), num(f.pit_ks, 3), pct(f.coverage90)];
  return table(["class", "images", "mean LL", "mean", "median", "Acc@15", "Acc@30", "spread", "PIT KS", "90 % covers"],
    [...Object.entries(D.classes).map(([name, f]) => row(cells(name, f))), row(cells("mean of classes", D.class_mean), true)]);
}

const t = D.throughput;
page.replaceChildren(
  el("h1", {}, D.model || "Evaluation"),
  el("p", { class: "soft" }, `${D.kind}, ${many(D.parameters)} parameters · ${many(D.images)} images: ${D.data}`),
  el("div", { class: "tiles" },
    tile(num(D.mean_log_likelihood), "mean log-likelihood", `median ${num(D.median_log_likelihood)}, ceiling ${num(D.ceiling)}`),
    tile(deg(D.mean_error_deg), "mean error", `median ${deg(D.median_error_deg)}`),
    tile(pct(D.acc15), "within 15°", `${pct(D.acc30)} within 30°`),
    D.samples ? tile(deg(D.spread_deg), "spread", "expected angle to the truth") : null,
    D.samples ? tile(num(D.pit_ks, 4), "PIT distance (KS)", D.verdict) : null,
    D.samples ? tile(pct(D.coverage90), "in the 90 % region", `± ${pct(D.coverage90_se)}`) : null),
  el("h2", {}, "Curves"),
  el("div", { class: "two" }, likelihoodChart(), errorChart(), ...(D.curves.pit ? [pitChart(), coverageChart()] : [])),
  el("h2", {}, "Ways to predict"), strategies(),
  ...(Object.values(D.symmetries).includes("unknown") ? [el("p", { class: "soft" }, "Symmetries of " + Object.keys(D.symmetries).filter(k => D.symmetries[k] === "unknown").slice(0, 5).join(", ") + " are not known: errors are to the given rotation alone.")] : []),
  ...(Object.keys(D.classes).length > 1 ? [el("h2", {}, "Classes"), classes()] : []),
  el("h2", {}, "Speed"),
  el("p", {}, `${rate(t.likelihoods)} log-likelihoods, ${rate(Object.values(t.predictions)[0])} predictions` + (t.samples ? ` and ${rate(t.samples)} samples` : "") + " a second"),
  el("p", { class: "soft" }, `Medians over batches of ${t.batch_size} images, their encoding included, for each of ${t.processes} process${t.processes > 1 ? "es" : ""} on ${t.device} with ${t.threads} thread${t.threads > 1 ? "s" : ""}.`),
  ...(D.unreadable.length ? [el("p", {}, `${D.unreadable.length} images could not be read and were left out, the first: ${D.unreadable[0]}`)] : []),
  ...worstCases(D.worst, D.unlikely, c => el("span", { class: "name" }, (Object.keys(D.classes).length > 1 ? c.label + ", " : "") + c.name)));
