// The rotation-vector ball: points coloured by log density, turned by mouse, touch or keys.
(() => {
  const Aquamam = (window.Aquamam = window.Aquamam || {});
  const PICK_PIXELS = 14;

  /** The rotation vector (axis times angle, radians) of a unit quaternion xyzw. */
  Aquamam.rotationVector = ([x, y, z, w]) => {
    const s = Math.hypot(x, y, z);
    if (s < 1e-12) return [0, 0, 0];
    const k = (2 * Math.atan2(w < 0 ? -s : s, Math.abs(w))) / s;
    return [k * x, k * y, k * z];
  };

  /** Colour at t in [0, 1] along a list of hex colours, as three numbers in [0, 1]. */
  Aquamam.colourAt = (stops, t) => {
    const at = Math.min(Math.max(t, 0), 1) * (stops.length - 1);
    const i = Math.min(Math.floor(at), stops.length - 2);
    const part = (hex, c) => parseInt(hex.slice(1 + 2 * c, 3 + 2 * c), 16) / 255;
    return [0, 1, 2].map((c) => part(stops[i], c) + (at - i) * (part(stops[i + 1], c) - part(stops[i], c)));
  };

  const VERTEX = `
    attribute vec3 tint; attribute float share; attribute float density; attribute float kind;
    uniform float threshold, scale, reference; uniform vec3 shown; uniform vec3 accent;
    varying vec4 colour; varying float shape;
    void main() {
      vec4 seen = modelViewMatrix * vec4(position, 1.0);
      gl_Position = projectionMatrix * seen;
      shape = kind;
      bool truth = kind < 0.5;
      float on = truth ? shown.x : (kind < 1.5 ? shown.y : shown.z);
      if (!truth && density < threshold) on = 0.0;
      float size = truth ? 20.0 : (kind < 1.5 ? 5.0 : 4.0) + 4.0 * share;
      gl_PointSize = on * size * scale * reference / -seen.z;
      if (on < 0.5) gl_Position = vec4(2.0, 2.0, 2.0, 1.0);
      colour = truth ? vec4(accent, 1.0) : vec4(tint, 0.3 + 0.7 * pow(share, 1.5));
    }`;
  const FRAGMENT = `
    varying vec4 colour; varying float shape;
    void main() {
      vec2 p = 2.0 * gl_PointCoord - 1.0;
      float inside = 1.0 - length(p);
      if (shape > 1.5) inside = 1.0 - (abs(p.x) + abs(p.y));
      if (shape < 0.5) {
        const float turn = 6.2831853 / 5.0;
        float a = abs(mod(atan(p.x, -p.y) + 0.5 * turn, turn) - 0.5 * turn);
        vec2 at = length(p) * vec2(cos(a), sin(a)) - vec2(0.98, 0.0);
        vec2 edge = 0.42 * vec2(cos(0.5 * turn), sin(0.5 * turn)) - vec2(0.98, 0.0);
        inside = edge.x * at.y - edge.y * at.x;
      }
      float soft = fwidth(inside);
      float alpha = colour.a * smoothstep(0.0, 1.5 * soft, inside);
      if (alpha < 0.004) discard;
      gl_FragColor = vec4(colour.rgb, alpha);
    }`;

  class Ball {
    /** host: an empty element. on: {hover(index or -1, x, y), select(index)}. */
    constructor(host, on = {}) {
      this.host = host;
      this.on = on;
      this.points = null;
      this.threshold = -Infinity;
      this.shown = [1, 1, 1];
      this.selected = -1;
      this.labels = [];
      this.renderer = new THREE.WebGLRenderer({ antialias: true, alpha: true });
      this.renderer.outputColorSpace = THREE.LinearSRGBColorSpace; // colours are written as they are
      const canvas = (this.canvas = this.renderer.domElement);
      canvas.tabIndex = 0;
      canvas.setAttribute("role", "application");
      canvas.setAttribute(
        "aria-label",
        "Ball of rotations. Arrow keys turn it, plus and minus zoom, comma and full stop step through the rotations from the likeliest on."
      );
      host.append(canvas);
      this.overlay = document.createElement("div");
      this.overlay.className = "overlay";
      this.overlay.setAttribute("aria-hidden", "true");
      host.append(this.overlay);
      this.ring = this.addLabel("", [0, 0, 0], "ring");
      this.ring.element.hidden = true;
      this.scene = new THREE.Scene();
      this.camera = new THREE.PerspectiveCamera(32, 1, 0.1, 100);
      this.reference = 12.6;
      this.camera.position.set(0.45, 0.3, 0.84).setLength(this.reference);
      this.controls = new THREE.OrbitControls(this.camera, canvas);
      Object.assign(this.controls, { enablePan: false, minDistance: 4, maxDistance: 24, rotateSpeed: 0.9 });
      this.controls.addEventListener("change", () => this.draw());
      this.frame = this.makeFrame();
      this.scene.add(this.frame);
      this.listen();
      new ResizeObserver(() => this.resize()).observe(host);
      this.resize();
    }

    makeFrame() {
      const group = new THREE.Group();
      const circle = (place) => {
        const at = [];
        for (let i = 0; i < 128; i++) at.push(...place((2 * Math.PI * i) / 128));
        const geometry = new THREE.BufferGeometry();
        geometry.setAttribute("position", new THREE.BufferAttribute(new Float32Array(at), 3));
        return new THREE.LineLoop(geometry, new THREE.LineBasicMaterial({ transparent: true, opacity: 0.4 }));
      };
      const r = Math.PI, { cos, sin } = Math;
      group.add(circle((t) => [r * cos(t), r * sin(t), 0]), circle((t) => [r * cos(t), 0, r * sin(t)]), circle((t) => [0, r * cos(t), r * sin(t)]));
      const axes = new THREE.BufferGeometry();
      axes.setAttribute("position", new THREE.BufferAttribute(new Float32Array([-r, 0, 0, r, 0, 0, 0, -r, 0, 0, r, 0, 0, 0, -r, 0, 0, r]), 3));
      group.add(new THREE.LineSegments(axes, new THREE.LineBasicMaterial({ transparent: true, opacity: 0.4 })));
      this.outline = circle((t) => [cos(t), sin(t), 0]);
      this.outline.material.opacity = 0.9;
      group.add(this.outline);
      "xyz".split("").forEach((letter, i) => this.addLabel(letter, [0, 1, 2].map((j) => (i === j ? 1.09 * r : 0)), "axis"));
      return group;
    }

    addLabel(text, position, kind) {
      const element = document.createElement("span");
      element.className = "label " + kind;
      element.textContent = text;
      this.overlay.append(element);
      const label = { element, position: new THREE.Vector3(...position), kind };
      this.labels.push(label);
      return label;
    }

    /** points: {q: [[x, y, z, w], ...], logDensity, source (0 truth, 1 sample, 2 uniform)}; marks: [{text, q, kind}]; range: [low, high]. */
    setPoints(points, range, marks = []) {
      this.points = points;
      this.range = range;
      const n = points.q.length;
      const positions = (this.positions = new Float32Array(3 * n));
      points.q.forEach((q, i) => positions.set(Aquamam.rotationVector(q), 3 * i));
      const rank = points.logDensity.map((_, i) => i).sort((a, b) => points.logDensity[a] - points.logDensity[b]);
      // likelier points are drawn later, the truth last
      this.order = [...rank.filter((i) => points.source[i] !== 0), ...rank.filter((i) => points.source[i] === 0)];
      this.likeliest = [...rank].reverse();
      const share = (i) => Math.min(1, Math.max(0, (points.logDensity[i] - range[0]) / (range[1] - range[0])));
      const geometry = new THREE.BufferGeometry();
      const attribute = (name, size, value) => {
        const array = new Float32Array(size * n);
        this.order.forEach((i, place) => array.set(value(i), size * place));
        geometry.setAttribute(name, new THREE.BufferAttribute(array, size));
      };
      attribute("position", 3, (i) => positions.subarray(3 * i, 3 * i + 3));
      attribute("share", 1, (i) => [share(i)]);
      attribute("density", 1, (i) => [points.logDensity[i]]);
      attribute("kind", 1, (i) => [points.source[i]]);
      attribute("tint", 3, () => [0, 0, 0]);
      // the last cloud is let go one step late, so that its compiled shader is used again
      this.stale?.geometry.dispose();
      this.stale?.material.dispose();
      this.stale = this.cloud;
      if (this.cloud) this.scene.remove(this.cloud);
      const material = new THREE.ShaderMaterial({
        vertexShader: VERTEX, fragmentShader: FRAGMENT, transparent: true, depthWrite: false, depthTest: false,
        uniforms: {
          threshold: { value: -1e9 }, scale: { value: 1 }, reference: { value: this.reference },
          shown: { value: new THREE.Vector3(...this.shown) }, accent: { value: new THREE.Vector3() },
        },
      });
      this.cloud = new THREE.Points(geometry, material);
      this.cloud.frustumCulled = false;
      this.share = share;
      this.scene.add(this.cloud);
      this.labels.filter((label) => label.kind.startsWith("mark")).forEach((label) => label.element.remove());
      this.labels = this.labels.filter((label) => !label.kind.startsWith("mark"));
      marks.forEach((mark) => this.addLabel(mark.text, Aquamam.rotationVector(mark.q), "mark " + (mark.kind || "")));
      this.select(-1);
      if (this.colours) this.setColours(this.colours);
      this.setThreshold(this.threshold);
    }

    /** colours: {density: [hex, ...], muted: hex, accent: hex}. */
    setColours(colours) {
      this.colours = colours;
      const muted = new THREE.Vector3(...Aquamam.colourAt([colours.muted, colours.muted], 0));
      this.frame.children.forEach((line) => line.material.color.setRGB(muted.x, muted.y, muted.z, THREE.LinearSRGBColorSpace));
      if (this.cloud) {
        const tint = this.cloud.geometry.getAttribute("tint");
        this.order.forEach((i, place) => tint.array.set(Aquamam.colourAt(colours.density, this.share(i)), 3 * place));
        tint.needsUpdate = true;
        this.cloud.material.uniforms.accent.value.set(...Aquamam.colourAt([colours.accent, colours.accent], 0));
      }
      this.draw();
    }

    setThreshold(value) {
      this.threshold = value;
      if (this.cloud) this.cloud.material.uniforms.threshold.value = Math.max(value, -1e9);
      this.draw();
    }

    /** Which of truth, samples and uniform rotations are shown. */
    setShown(truth, samples, uniform) {
      this.shown = [truth, samples, uniform].map(Number);
      if (this.cloud) this.cloud.material.uniforms.shown.value.set(...this.shown);
      this.draw();
    }

    isShown(i) {
      const source = this.points.source[i];
      return Boolean(this.shown[source]) && (source === 0 || this.points.logDensity[i] >= this.threshold);
    }

    countShown() {
      return this.points.q.reduce((count, _, i) => count + Number(this.isShown(i)), 0);
    }

    select(i) {
      this.selected = i;
      this.ring.element.hidden = i < 0;
      if (i >= 0) this.ring.position.fromArray(this.positions, 3 * i);
      this.draw();
    }

    /** The shown point nearest to a place of the canvas (CSS pixels), or -1. */
    pick(x, y) {
      if (!this.points) return -1;
      const at = new THREE.Vector3();
      let best = -1, least = Infinity;
      this.points.q.forEach((_, i) => {
        if (!this.isShown(i)) return;
        at.fromArray(this.positions, 3 * i).project(this.camera);
        const away = Math.hypot((at.x + 1) * 0.5 * this.width - x, (1 - at.y) * 0.5 * this.height - y);
        // of points close together the likelier, which is seen, comes first
        const cost = away - 6 * this.share(i);
        if (away <= PICK_PIXELS && cost < least) [best, least] = [i, cost];
      });
      return best;
    }

    /** Turn the ball so that a rotation (xyzw) comes to the front. */
    turnTo(q) {
      const goal = new THREE.Vector3(...Aquamam.rotationVector(q));
      if (goal.length() < 0.3) return; // the centre looks the same from everywhere
      goal.normalize();
      // not quite from the front, and on the side where the camera is: modes behind one another stay apart
      const aside = this.camera.position.clone().addScaledVector(goal, -this.camera.position.dot(goal));
      if (aside.length() < 1e-3) aside.set(goal.z, 0.5, -goal.x);
      goal.addScaledVector(aside.normalize(), 0.75);
      const from = this.camera.position.clone(), distance = from.length();
      const start = performance.now();
      const time = matchMedia("(prefers-reduced-motion: reduce)").matches ? 1 : 450;
      const step = (now) => {
        const t = Math.min(1, Math.max(0, (now - start) / time)), ease = t * t * (3 - 2 * t);
        this.camera.position.copy(from).normalize().lerp(goal.clone().normalize(), ease);
        if (this.camera.position.length() < 1e-3) this.camera.position.set(0.1, 0.1, 0.1);
        this.camera.position.setLength(distance);
        this.controls.update();
        this.draw();
        if (t < 1) requestAnimationFrame(step);
      };
      requestAnimationFrame(step);
    }

    /** Turn by angles in radians: right and up. */
    orbit(right, up) {
      const at = this.camera.position, r = at.length();
      const polar = Math.min(Math.PI - 0.05, Math.max(0.05, Math.acos(at.y / r) - up));
      const azimuth = Math.atan2(at.x, at.z) + right;
      at.set(Math.sin(polar) * Math.sin(azimuth), Math.cos(polar), Math.sin(polar) * Math.cos(azimuth)).multiplyScalar(r);
      this.controls.update();
      this.draw();
    }

    zoom(factor) {
      this.camera.position.setLength(Math.min(24, Math.max(4, this.camera.position.length() * factor)));
      this.controls.update();
      this.draw();
    }

    /** Select the next (or previous) of the shown points, from the likeliest on. */
    step(by) {
      const shown = this.likeliest.filter((i) => this.isShown(i));
      if (!shown.length) return;
      const now = shown.indexOf(this.selected);
      const next = shown[now < 0 ? 0 : (now + by + shown.length) % shown.length];
      this.select(next);
      this.on.select?.(next);
    }

    listen() {
      const canvas = this.canvas;
      let down = null;
      const place = (event) => {
        const box = canvas.getBoundingClientRect();
        return [event.clientX - box.left, event.clientY - box.top];
      };
      canvas.addEventListener("pointerdown", (event) => (down = place(event)));
      canvas.addEventListener("pointermove", (event) => {
        if (event.pointerType === "touch" || event.buttons) return this.on.hover?.(-1, 0, 0);
        const [x, y] = place(event), i = this.pick(x, y);
        canvas.style.cursor = i >= 0 ? "pointer" : "grab";
        this.on.hover?.(i, x, y);
      });
      canvas.addEventListener("pointerleave", () => this.on.hover?.(-1, 0, 0));
      canvas.addEventListener("pointerup", (event) => {
        const [x, y] = place(event);
        if (!down || Math.hypot(x - down[0], y - down[1]) > 5) return; // a drag turns the ball
        const i = this.pick(x, y);
        if (i >= 0) {
          this.select(i);
          this.on.select?.(i);
        }
      });
      const turn = 0.12;
      const keys = {
        ArrowLeft: () => this.orbit(-turn, 0), ArrowRight: () => this.orbit(turn, 0),
        ArrowUp: () => this.orbit(0, turn), ArrowDown: () => this.orbit(0, -turn),
        "+": () => this.zoom(0.9), "=": () => this.zoom(0.9), "-": () => this.zoom(1 / 0.9),
        ".": () => this.step(1), ",": () => this.step(-1),
      };
      canvas.addEventListener("keydown", (event) => {
        if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
        event.preventDefault();
        keys[event.key]();
      });
    }

    resize() {
      const box = this.host.getBoundingClientRect();
      if (!box.width || !box.height) return;
      [this.width, this.height] = [box.width, box.height];
      this.renderer.setPixelRatio(Math.min(window.devicePixelRatio || 1, 2));
      this.renderer.setSize(box.width, box.height);
      this.camera.aspect = box.width / box.height;
      // the whole ball fits the narrower side
      this.camera.fov = 2 * Math.atan(0.287 * Math.max(1, box.height / box.width)) * (180 / Math.PI);
      this.camera.updateProjectionMatrix();
      this.draw();
    }

    draw() {
      if (this.waiting || !this.width) return;
      this.waiting = true;
      requestAnimationFrame(() => {
        this.waiting = false;
        const distance = this.camera.position.length(), r = Math.PI;
        this.camera.updateMatrixWorld();
        // the outline that a ball shows at this distance
        if (distance > 1.05 * r) {
          this.outline.visible = true;
          this.outline.position.copy(this.camera.position).setLength((r * r) / distance);
          this.outline.scale.setScalar(r * Math.sqrt(1 - (r / distance) ** 2));
          this.outline.quaternion.copy(this.camera.quaternion);
        } else this.outline.visible = false;
        if (this.cloud) {
          const uniforms = this.cloud.material.uniforms;
          uniforms.scale.value = this.renderer.getPixelRatio() * Math.min(1.25, Math.max(0.75, Math.min(this.width, this.height) / 520));
        }
        this.renderer.render(this.scene, this.camera);
        const at = new THREE.Vector3();
        for (const label of this.labels) {
          at.copy(label.position).project(this.camera);
          label.element.style.transform = `translate(${((at.x + 1) * 0.5 * this.width).toFixed(1)}px, ${((1 - at.y) * 0.5 * this.height).toFixed(1)}px)`;
        }
      });
    }
  }

  Aquamam.Ball = Ball;
})();
