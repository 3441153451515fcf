// Wires the page: ball, pose, modes, threshold. All it shows is in the page's data.
(() => {
  const Aquamam = window.Aquamam;
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const SOURCES = ["the true rotation", "drawn from the posterior", "uniform rotation"];
  const number = (x, digits = 2) => (x < -99999 ? "−∞" : x.toFixed(digits).replace(/^-(?=0\.?0*$)/, "").replace("-", "−"));
  const percent = (x) => (100 * x).toFixed(x < 0.1 ? 1 : 0) + " %";
  const points = data.points;

  const make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };

  /** A rotation in words: angle and axis. */
  const inWords = (q) => {
    const r = Aquamam.rotationVector(q), angle = Math.hypot(...r);
    if (angle < 1e-6) return "no rotation";
    return `${((angle * 180) / Math.PI).toFixed(1)}° about (${r.map((x) => number(x / angle)).join(", ")})`;
  };
  const asText = (q) => `(${q.map((x) => number(x, 4)).join(", ")})`;

  // --- the answer -------------------------------------------------------------------------------------------------
  const [head, ...rest] = data.answer.words.split(": ");
  $("verdict").append(make("b", { textContent: head[0].toUpperCase() + head.slice(1) }), ": " + rest.join(": "));
  $("input").src = data.image;
  $("footer").textContent = data.footer;
  if (data.object && data.object.settings.background) {
    document.documentElement.style.setProperty("--object-paper", `rgb(${data.object.settings.background.join(",")})`);
  }

  const tryTo = (action, host) => {
    try {
      return action();
    } catch (error) {
      host.append(make("p", { className: "message", textContent: "This browser cannot draw in 3D (WebGL is off); the numbers beside are complete." }));
      console.warn(error);
      return null;
    }
  };
  const pose = tryTo(() => new Aquamam.ObjectView($("pose"), data.object), $("pose"));
  const tip = $("tip");
  const ball = tryTo(() => new Aquamam.Ball($("ball"), { select: (i) => showPoint(i), hover: showTip }), $("ball"));

  // --- the selected rotation --------------------------------------------------------------------------------------
  function show(q, logDensity, caption) {
    pose?.show(q);
    $("pose-caption").textContent = caption;
    $("pose").setAttribute("aria-label", `${data.object ? "The " + data.object.name : "The object's axes"} turned by ${inWords(q)}`);
    const facts = [
      ["log density", `${number(logDensity)} nats`],
      ["compare", `uniform ${number(data.uniform)}` + (data.ceiling === null ? "" : `, ceiling ${number(data.ceiling)}`)],
      ["rotation", inWords(q)],
      ["quaternion", `${asText(q)} xyzw`],
    ];
    $("facts").replaceChildren(...facts.flatMap(([name, value]) => [make("dt", { textContent: name }), make("dd", { textContent: value })]));
  }

  function showPoint(i) {
    const kind = points.source[i] === 1 && points.mode[i] >= 0 ? `a sample of mode ${points.mode[i] + 1}` : SOURCES[points.source[i]];
    press(-1);
    show(points.q[i], points.logDensity[i], kind);
  }

  function showTip(i, x, y) {
    tip.hidden = i < 0;
    if (i < 0) return;
    tip.replaceChildren(
      make("b", { textContent: `ln p = ${number(points.logDensity[i])}` }), inWords(points.q[i]), make("br"), asText(points.q[i]) + " xyzw", make("br"), SOURCES[points.source[i]]
    );
    const stage = $("ball"), gap = 14;
    const left = x + gap + tip.offsetWidth > stage.clientWidth ? x - gap - tip.offsetWidth : x + gap;
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${Math.max(0, Math.min(y + gap, stage.clientHeight - tip.offsetHeight))}px`;
  }

  // --- the modes --------------------------------------------------------------------------------------------------
  const press = (k) => [...$("modes").querySelectorAll("button")].forEach((button, j) => button.setAttribute("aria-pressed", String(j === k)));
  const nearest = (q) => {
    let best = -1, most = -1;
    points.q.forEach((p, i) => {
      const dot = Math.abs(p[0] * q[0] + p[1] * q[1] + p[2] * q[2] + p[3] * q[3]);
      if (points.source[i] === 1 && dot > most) [best, most] = [i, dot];
    });
    return best;
  };
  const KINDS = { point: (m) => `to within ${m.radius_deg < 10 ? m.radius_deg.toFixed(1) : Math.round(m.radius_deg)}°`, curve: () => "a curve of rotations", region: () => "a wide region" };
  $("modes-heading").textContent = data.modes.length === 1 ? "One mode" : data.modes.length ? `${data.modes.length} separate modes` : "No separate mode";
  data.modes.forEach((mode, k) => {
    const button = make("button", { type: "button" },
      make("b", { textContent: k + 1 }),
      make("span", { textContent: `${inWords(mode.quaternion_xyzw)}, ${KINDS[mode.kind](mode)}` }),
      make("span", { className: "share", textContent: percent(mode.share) }));
    button.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-label", `Mode ${k + 1}, ${percent(mode.share)} of the probability, ${inWords(mode.quaternion_xyzw)}, ${KINDS[mode.kind](mode)}`);
    button.style.setProperty("--share", percent(mode.share).replace(" ", ""));
    button.addEventListener("click", () => {
      ball?.select(nearest(mode.quaternion_xyzw));
      ball?.turnTo(mode.quaternion_xyzw);
      show(mode.quaternion_xyzw, mode.log_density, `mode ${k + 1}, ${percent(mode.share)}`);
      press(k);
    });
    $("modes").append(make("li", {}, button));
  });
  const left = 1 - data.modes.reduce((sum, mode) => sum + mode.share, 0);
  $("elsewhere").textContent = left >= 0.01 ? `${percent(left)} of the probability is spread elsewhere.` : "";

  // --- threshold and kinds ----------------------------------------------------------------------------------------
  const slider = $("threshold"), [low, high] = data.range;
  Object.assign(slider, { min: low, max: high, value: low });
  const kinds = [0, 1, 2].map((source) => {
    const count = points.source.filter((s) => s === source).length;
    const box = make("input", { type: "checkbox", checked: true, disabled: !count });
    const text = [`truth (0)`, `${count} samples`, `${count} uniform`][source];
    if (count) $("kinds").append(make("label", {}, box, text));
    box.addEventListener("change", update);
    return box;
  });
  function update() {
    const value = Number(slider.value), all = value <= low + 1e-9;
    $("threshold-value").textContent = all ? "any" : number(value);
    slider.setAttribute("aria-valuetext", all ? "any" : number(value));
    if (!ball) return;
    ball.setShown(...kinds.map((box) => box.checked));
    ball.setThreshold(all ? -Infinity : value);
    $("count").textContent = `${ball.countShown().toLocaleString("en")} of ${points.q.length.toLocaleString("en")} rotations shown`;
  }
  slider.addEventListener("input", update);

  // --- colours ----------------------------------------------------------------------------------------------------
  function paint() {
    const colours = data.colours[dark.matches ? "dark" : "light"];
    ball?.setColours(colours);
    document.documentElement.style.setProperty("--likely", colours.density.at(-2));
    const at = (value) => (100 * (value - low)) / (high - low);
    const tick = (value, text, kind = "") => {
      const label = make("span", { textContent: text, className: kind });
      label.style.left = `${at(value)}%`;
      return label;
    };
    const bar = make("div", { className: "bar" });
    bar.style.background = `linear-gradient(to right, ${colours.density.join(", ")})`;
    $("scale").replaceChildren(bar, tick(low, `≤ ${number(low, 1)}`, "first"), tick(high, `ln p ${Math.max(...points.logDensity) > high + 1e-3 ? "≥" : "="} ${number(high, 1)}`, "last"));
    if (at(data.uniform) < 70) $("scale").append(tick(data.uniform, `uniform ${number(data.uniform)}`, "first"));
  }
  dark.addEventListener("change", paint);

  // --- begin ------------------------------------------------------------------------------------------------------
  const marks = data.modes.slice(0, 12).map((mode, k) => ({ text: String(k + 1), q: mode.quaternion_xyzw }));
  if (points.source[0] === 0) marks.push({ text: "0", q: points.q[0], kind: "truth" });
  ball?.setPoints(points, data.range, marks);
  paint();
  update();
  show(data.answer.quaternion_xyzw, data.answer.log_density, "the prediction");
  Aquamam.page = { ball, pose, data, ready: pose?.ready || Promise.resolve() };
})();
