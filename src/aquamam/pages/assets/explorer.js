// What the page of a posterior and the page of the service share: the ball, the pose, the modes, the threshold.
(() => {
  const Aquamam = window.Aquamam;
  const LOWEST = -1e6; // JSON knows no infinity: null stands for it
  const SOURCES = ["the true rotation", "drawn from the posterior", "uniform rotation"];
  const KINDS = { point: (m) => `±\u00a0${m.radius_deg < 10 ? m.radius_deg.toFixed(1) : Math.round(m.radius_deg)}°`, curve: () => "a curve of rotations", region: () => "a wide region" };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const $ = (Aquamam.$ = (id) => document.getElementById(id));
  const number = (x, digits = 2) => (x <= LOWEST ? "−∞" : x.toFixed(digits).replace(/^-(?=0\.?0*$)/, "").replace("-", "−"));
  const percent = (x) => (100 * x).toFixed(x < 0.1 ? 1 : 0) + " %";
  const asText = (q) => `(${q.map((x) => number(x, 4)).join(", ")})`;
  const make = (Aquamam.make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  });

  /** A rotation in words: angle and axis. */
  const inWords = (Aquamam.inWords = (q) => {
    const r = Aquamam.rotationVector(q), angle = Math.hypot(...r);
    if (angle < 1e-6) return "no rotation";
    return `${((angle * 180) / Math.PI).toFixed(1)}° about (${r.map((x) => number(x / angle)).join(", ")})`;
  });

  /** What `action` makes, or null and a message in `host` where the browser cannot. */
  const tryTo = (Aquamam.tryTo = (action, host) => {
    try {
      return action();
    } catch (error) {
      host.append(make("p", { className: "message", textContent: "This browser cannot draw in 3D (WebGL is off); the numbers are complete without it." }));
      console.warn(error);
      return null;
    }
  });

  Aquamam.Explorer = class {
    /** data: {uniform, colours}. */
    constructor(data) {
      this.data = data;
      this.ball = tryTo(() => new Aquamam.Ball($("ball"), { select: (i) => this.showPoint(i), hover: (...at) => this.showTip(...at) }), $("ball"));
      this.pose = null;
      $("threshold").addEventListener("input", () => this.update());
      for (const source of [0, 1, 2]) $(`show-${source}`).addEventListener("change", () => this.update());
      dark.addEventListener("change", () => this.paint());
    }

    /** The object that poses are shown with, or null for its axes. */
    setObject(object) {
      this.pose?.renderer.dispose();
      this.pose?.canvas.remove();
      this.object = object;
      document.documentElement.style.setProperty("--object-paper", object ? `rgb(${object.settings.background.join(",")})` : "var(--panel)");
      this.pose = tryTo(() => new Aquamam.ObjectView($("pose"), object), $("pose"));
    }

    /** answer: as /v1/posterior gives it; range: log densities of the first and of the last colour. */
    show(answer, range) {
      const { quaternions_xyzw, log_density, source, mode } = answer.points, slider = $("threshold");
      const first = !this.points;
      Object.assign(this, { answer, range, points: { q: quaternions_xyzw, logDensity: log_density.map((x) => x ?? LOWEST), source, mode } });
      const marks = answer.modes.slice(0, 12).map((each, k) => ({ text: String(k + 1), q: each.quaternion_xyzw }));
      if (source[0] === 0) marks.push({ text: "0", q: quaternions_xyzw[0], kind: "truth" });
      this.ball?.setPoints(this.points, range, marks);
      Object.assign(slider, { min: range[0], max: range[1] });
      if (first) slider.value = range[0];
      ["truth (0)", "samples", "uniform"].forEach((name, kind) => {
        const count = source.filter((s) => s === kind).length, label = $(`show-${kind}`).parentElement;
        label.hidden = !count;
        label.lastElementChild.textContent = kind ? `${count} ${name}` : name;
      });
      const [head, ...rest] = answer.verdict.split(": ");
      $("verdict").replaceChildren(make("b", { textContent: head[0].toUpperCase() + head.slice(1) }), ": " + rest.join(": "));
      this.showModes(answer.modes);
      this.update();
      this.paint();
      this.showPose(answer.quaternion_xyzw, answer.log_density, "the prediction");
    }

    showPose(q, logDensity, caption) {
      const { points, object, answer } = this;
      this.pose?.show(q);
      $("pose-caption").textContent = caption;
      $("pose").setAttribute("aria-label", `${object ? "The " + object.name : "The object's axes"} rotated by ${inWords(q)}`);
      const facts = [
        ["log density", `${number(logDensity ?? LOWEST)} nats` + (points.source[0] === 0 ? `, true rotation ${number(points.logDensity[0])}` : "")],
        ["compare", `uniform ${number(this.data.uniform)}` + (answer.ceiling === null ? "" : `, ceiling ${number(answer.ceiling)}`)],
        ["rotation", inWords(q)],
        ["quaternion", `${asText(q)} xyzw`],
      ];
      $("facts").replaceChildren(...facts.flatMap(([name, value]) => [make("dt", { textContent: name }), make("dd", { textContent: value })]));
    }

    showPoint(i) {
      const { q, logDensity, source, mode } = this.points;
      this.press(-1);
      this.showPose(q[i], logDensity[i], source[i] === 1 && mode[i] >= 0 ? `a sample of mode ${mode[i] + 1}` : SOURCES[source[i]]);
    }

    showTip(i, x, y) {
      const tip = $("tip"), stage = $("ball"), points = this.points, gap = 14;
      tip.hidden = i < 0 || !points;
      if (tip.hidden) return;
      tip.replaceChildren(
        make("b", { textContent: `ln p = ${number(points.logDensity[i])}` }), inWords(points.q[i]), make("br"), asText(points.q[i]) + " xyzw", make("br"), SOURCES[points.source[i]]
      );
      const left = x + gap + tip.offsetWidth > stage.clientWidth ? x - gap - tip.offsetWidth : x + gap;
      tip.style.left = `${Math.max(0, left)}px`;
      tip.style.top = `${Math.max(0, Math.min(y + gap, stage.clientHeight - tip.offsetHeight))}px`;
    }

    /** Buttons are kept from one answer to the next, so that one that has the focus keeps it. */
    showModes(modes) {
      const list = $("modes"), elsewhere = 1 - modes.reduce((sum, mode) => sum + mode.share, 0);
      $("modes-heading").textContent = modes.length === 1 ? "One mode" : modes.length ? `${modes.length} separate modes` : "No separate mode";
      while (list.children.length > modes.length) list.lastChild.remove();
      modes.forEach((mode, k) => {
        if (!list.children[k]) {
          const button = make("button", { type: "button" }, make("b", { textContent: k + 1 }), make("span"), make("span", { className: "share" }));
          button.addEventListener("click", () => this.chooseMode(k));
          list.append(make("li", {}, button));
        }
        const button = list.children[k].firstChild, words = `${inWords(mode.quaternion_xyzw)}, ${KINDS[mode.kind](mode)}`;
        button.children[1].textContent = words;
        button.children[2].textContent = percent(mode.share);
        button.setAttribute("aria-label", `Mode ${k + 1}, ${percent(mode.share)} of the probability, ${words}`);
        button.style.setProperty("--share", `${(100 * mode.share).toFixed(1)}%`);
      });
      this.press(-1);
      $("elsewhere").textContent = elsewhere >= 0.01 ? `${percent(elsewhere)} of the probability is spread elsewhere.` : "";
    }

    chooseMode(k) {
      const { q: all, source } = this.points, mode = this.answer.modes[k], q = mode.quaternion_xyzw;
      const cosine = (i) => (source[i] === 1 ? Math.abs(all[i].reduce((sum, x, c) => sum + x * q[c], 0)) : -1);
      this.ball?.select(all.reduce((best, _, i) => (cosine(i) > cosine(best) ? i : best), 0));
      this.ball?.turnTo(q);
      this.showPose(q, mode.log_density, `mode ${k + 1}, ${percent(mode.share)}`);
      this.press(k);
    }

    press(k) {
      [...$("modes").querySelectorAll("button")].forEach((button, j) => button.setAttribute("aria-pressed", String(j === k)));
    }

    /** What the slider and the boxes leave of the ball's points. */
    update() {
      if (!this.points) return;
      const slider = $("threshold"), value = Number(slider.value), all = value <= this.range[0] + 1e-9, text = all ? "any" : number(value);
      $("threshold-value").textContent = text;
      slider.setAttribute("aria-valuetext", text);
      if (!this.ball) return;
      this.ball.setShown(...[0, 1, 2].map((source) => $(`show-${source}`).checked));
      this.ball.setThreshold(all ? -Infinity : value);
      $("count").textContent = `${this.ball.countShown().toLocaleString("en")} of ${this.points.q.length.toLocaleString("en")} rotations shown`;
    }

    /** The colours of the theme, on the ball and on the scale below it. */
    paint() {
      if (!this.points) return;
      const [low, high] = this.range, name = dark.matches ? "dark" : "light", colours = this.data.colours[name];
      const now = `${name} ${high.toFixed(1)}`;
      if (this.theme !== name) this.ball?.setColours(colours);
      this.theme = name;
      if (this.painted === now) return;
      this.painted = now;
      document.documentElement.style.setProperty("--likely", colours.density.at(-2));
      const at = (value) => (100 * (value - low)) / (high - low);
      const tick = (value, text, kind) => {
        const label = make("span", { textContent: text, className: kind });
        label.style.left = `${at(value)}%`;
        return label;
      };
      const bar = make("div", { className: "bar" });
      bar.style.background = `linear-gradient(to right, ${colours.density.join(", ")})`;
      $("scale").replaceChildren(bar, tick(low, `≤ ${number(low, 1)}`, "first"), tick(high, `ln p ≥ ${number(high, 1)}`, "last"));
      const uniform = at(this.data.uniform); // its label must not run into the others'
      if (uniform < 70 && uniform * $("scale").clientWidth > 6000) $("scale").append(tick(this.data.uniform, `uniform ${number(this.data.uniform)}`, "first"));
    }
  };
})();
