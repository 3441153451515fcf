// The service's page: an image that is dropped, or a box of it, or an object that is turned, goes to /v1/posterior; what comes back is shown.
(() => {
  const { $, make, inWords, tryTo } = Aquamam;
  const data = JSON.parse($("data").textContent);
  const page = new Aquamam.Explorer(data);

  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  const headers = token ? { authorization: `Bearer ${token}` } : {};

  let model = data.models[0];
  let object = null; // of the model, or null
  let views = { source: null, camera: null };
  let held = { kind: "none", q: [0, 0, 0, 1], blob: null }; // what is shown: an object that is turned, or a file

  // --- a box of a photograph, and its camera ------------------------------------------------------------------------
  const pen = new Aquamam.BoxPen($("source"), $("picture"), () => {
    refresh();
    ask();
  });
  const lens = () => {
    const numbers = $("lens").value.split(",").map(Number);
    return numbers.length >= 4 && numbers.every(Number.isFinite) ? numbers : null;
  };

  // --- asking: one request at a time, and when it is back the newest state of things --------------------------------
  const MOVING = { samples: 200, uniform: 100 }, STILL = { samples: 800, uniform: 300 };
  let asking = false, changed = false, resting = 0, finished = [];
  function ask() {
    changed = true;
    clearTimeout(resting);
    pump();
  }

  async function pump(detail = MOVING) {
    if (asking || held.kind === "none") return;
    asking = true;
    changed = false;
    const begun = performance.now();
    const sent = { ...held, model, detail, box: held.kind === "file" ? pen.box : null };
    sent.camera = sent.box && model.part ? lens() : null;
    let answer = null, pause = 0;
    try {
      const form = new FormData();
      form.append("image", sent.kind === "object" ? await photograph(sent.q) : sent.blob, "image");
      form.append("model", sent.model.name);
      form.append("samples", detail.samples);
      form.append("uniform", detail.uniform);
      if (sent.box) form.append("box", sent.box.join(","));
      if (sent.camera) form.append("camera", sent.camera.join(","));
      if (sent.kind === "object") form.append("rotations", JSON.stringify([sent.q]));
      const response = await fetch("/v1/posterior", { method: "POST", body: form, headers, signal: AbortSignal.timeout(20000) });
      const body = await response.json();
      if (response.ok) answer = body;
      else pause = 1000 * Number(response.headers.get("retry-after") || 0);
      problem(response.ok ? "" : body.detail || `The service says ${response.status}.`);
    } catch (error) {
      problem("The service does not answer; it may have been stopped.");
      console.warn(error);
    }
    if (pause) {
      changed = true;
      await new Promise((done) => setTimeout(done, pause));
    }
    asking = false;
    if (changed) pump(); // the service works on the next one while this one is drawn
    else if (answer && detail === MOVING) resting = setTimeout(() => pump(STILL), 250);
    if (answer && sent.model === model && sent.kind === held.kind && sent.blob === held.blob && (sent.kind !== "file" || sent.box === pen.box)) {
      pace(performance.now() - begun);
      show(answer, sent);
    }
  }

  function problem(text) {
    $("problem").hidden = !text;
    $("problem").textContent = text;
  }

  function pace(milliseconds) {
    const now = performance.now();
    finished = [...finished.filter((time) => now - time < 3000), now];
    const rate = finished.length > 2 ? (1000 * (finished.length - 1)) / (now - finished[0]) : 0;
    $("pace").textContent = `${Math.round(milliseconds)} ms for this posterior` + (rate ? `, ${rate.toFixed(1)} a second` : "");
    Aquamam.live.answers += 1;
  }

  // --- the object that is turned ------------------------------------------------------------------------------------
  /** The object as `aquamam render` would draw it: twice the size that the model reads, and pixels averaged two by two. */
  async function photograph(q) {
    const view = views.camera, side = model.image_size;
    await view.ready; // its texture
    view.show(q);
    const canvas = make("canvas", { width: side, height: side });
    const pen = canvas.getContext("2d");
    pen.fillStyle = `rgb(${object.settings.background.join(",")})`;
    pen.fillRect(0, 0, side, side);
    pen.imageSmoothingQuality = "low"; // bilinear, at half the size: the mean of four pixels
    pen.drawImage(view.canvas, 0, 0, side, side);
    Aquamam.live.photograph = canvas;
    return new Promise((done) => canvas.toBlob(done, "image/png"));
  }

  function makeCamera() {
    const side = model.image_size;
    const view = new Aquamam.ObjectView($("camera"), object);
    view.resize = () => {}; // it is never shown, so its size is its own
    view.renderer.setPixelRatio(1);
    view.renderer.setSize(2 * side, 2 * side, false);
    view.camera.aspect = 1;
    view.camera.updateProjectionMatrix();
    return view;
  }

  const times = ([a, b, c, d], [x, y, z, w]) => [
    d * x + a * w + b * z - c * y, d * y - a * z + b * w + c * x, d * z + a * y - b * x + c * w, d * w - a * x - b * y - c * z,
  ];

  /** Turn by a rotation vector in the camera's coordinates: x right, y up, z towards the viewer. */
  function turnBy(x, y, z) {
    const angle = Math.hypot(x, y, z);
    if (!angle || held.kind !== "object") return;
    const s = Math.sin(angle / 2) / angle;
    turnTo(times([s * x, s * y, s * z, Math.cos(angle / 2)], held.q));
  }

  function turnTo(q) {
    const size = Math.hypot(...q) * (q[3] < 0 ? -1 : 1);
    held.q = q.map((x) => x / size);
    drawSource();
    $("source").setAttribute("aria-label", `The ${object.name}, turned by ${inWords(held.q)}. Arrow keys turn it, comma and full stop roll it.`);
    ask();
  }

  /** Draw the object that is turned; where a frame takes long (no GPU), seldom enough to leave room for the posteriors. */
  let planned = false, drawn = 0, lag = 16;
  function drawSource() {
    if (planned) return;
    planned = true;
    const rest = lag > 40 ? 4 * lag - (performance.now() - drawn) : 0;
    setTimeout(() => requestAnimationFrame(() => {
      planned = false;
      const begun = (drawn = performance.now());
      views.source?.show(held.q);
      requestAnimationFrame(() => (lag = 0.7 * lag + 0.3 * Math.min(200, performance.now() - begun)));
    }), Math.max(0, rest));
  }

  function listenToSource() {
    const source = $("source");
    const pointers = new Map();
    let twist = 0;
    const angleOf = () => {
      const [a, b] = [...pointers.values()];
      return Math.atan2(b.y - a.y, b.x - a.x);
    };
    source.addEventListener("pointerdown", (event) => {
      if (held.kind !== "object") return;
      source.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
      if (pointers.size === 2) twist = angleOf();
    });
    source.addEventListener("pointermove", (event) => {
      const last = pointers.get(event.pointerId);
      if (!last) return;
      const dx = event.clientX - last.x, dy = event.clientY - last.y, speed = (1.2 * Math.PI) / source.clientWidth;
      pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
      if (pointers.size === 2) {
        const now = angleOf();
        turnBy(0, 0, -Math.atan2(Math.sin(now - twist), Math.cos(now - twist)));
        twist = now;
      } else if (event.shiftKey) turnBy(0, 0, -speed * dx);
      else turnBy(speed * dy, speed * dx, 0);
    });
    for (const name of ["pointerup", "pointercancel"]) source.addEventListener(name, (event) => pointers.delete(event.pointerId));
    source.addEventListener("keydown", (event) => {
      const step = (event.shiftKey ? 1 : 6) * (Math.PI / 180);
      const turns = { ArrowUp: [-step, 0, 0], ArrowDown: [step, 0, 0], ArrowLeft: [0, -step, 0], ArrowRight: [0, step, 0], ",": [0, 0, step], ".": [0, 0, -step] };
      if (!turns[event.key] || event.ctrlKey || event.metaKey || event.altKey || held.kind !== "object") return;
      event.preventDefault();
      turnBy(...turns[event.key]);
    });
  }

  let spinning = 0;
  function spin(on) {
    cancelAnimationFrame(spinning);
    spinning = 0;
    $("spin").setAttribute("aria-pressed", String(on));
    let last = performance.now();
    const step = (now) => {
      const seconds = Math.min(0.1, (now - last) / 1000);
      last = now;
      turnBy(0.35 * seconds, 0.6 * seconds, 0.1 * seconds);
      spinning = requestAnimationFrame(step);
    };
    if (on) spinning = requestAnimationFrame(step);
  }

  function randomTurn() {
    const [a, b, c] = [Math.random(), 2 * Math.PI * Math.random(), 2 * Math.PI * Math.random()];
    turnTo([Math.sqrt(1 - a) * Math.sin(b), Math.sqrt(1 - a) * Math.cos(b), Math.sqrt(a) * Math.sin(c), Math.sqrt(a) * Math.cos(c)]);
  }

  // --- what is shown: object or file --------------------------------------------------------------------------------
  async function useModel(next) {
    model = next;
    spin(false);
    Object.values(views).forEach((view) => {
      view?.renderer.dispose();
      view?.canvas.remove();
    });
    object = null;
    if (model.object) {
      const response = await fetch(`/objects/${encodeURIComponent(model.name)}`, { headers });
      if (response.ok) object = await response.json();
    }
    page.setObject(object);
    views = {
      source: object && tryTo(() => new Aquamam.ObjectView($("source"), object), $("source")),
      camera: object && tryTo(makeCamera, $("camera")),
    };
    if (views.camera && held.kind !== "file") useObject();
    else refresh();
    ask();
  }

  function useObject() {
    held = { kind: "object", q: held.q, blob: null };
    turnTo(held.q);
    refresh();
  }

  function useFile(file) {
    if (!file) return;
    spin(false);
    held = { kind: "file", q: held.q, blob: file };
    pen.clear();
    const address = URL.createObjectURL(file);
    $("picture").onload = $("picture").onerror = () => {
      URL.revokeObjectURL(address);
      pen.draw();
    };
    $("picture").src = address;
    refresh();
    ask();
  }

  function refresh() {
    const turning = held.kind === "object", source = $("source");
    const file = held.kind === "file";
    $("picture").hidden = pen.canvas.hidden = !file;
    source.closest(".pair").classList.toggle("photograph", file); // large enough to draw a box on
    $("whole").hidden = !file || !pen.box;
    $("lens-label").hidden = $("place").hidden = !file || !pen.box || !model.part;
    if (!$("place").hidden) $("place").textContent = lens() ? "" : "Give the camera as fx,fy,cx,cy in pixels to see where the part is.";
    if (views.source) views.source.canvas.hidden = !turning;
    for (const id of ["spin", "random"]) $(id).hidden = !turning;
    $("turn").hidden = turning || !views.camera;
    $("turn").textContent = object ? `Turn the ${object.name}` : "";
    source.tabIndex = turning ? 0 : -1;
    source.setAttribute("role", turning ? "application" : "group");
    if (!turning) source.setAttribute("aria-label", "The image");
    $("source-caption").textContent = turning ? `drag to turn the ${object.name}` : file ? (held.blob.name || "an image") + (pen.box ? "" : ": drag a box around the part") : "drop an image here";
    $("models").value = model.name;
  }

  // --- what came back -----------------------------------------------------------------------------------------------
  let top = data.uniform + 4, settled = 0;
  function show(answer, sent) {
    // the scale follows slowly: colours that jump say nothing
    const highest = Math.max(data.uniform + 4, ...answer.points.log_density);
    top = Math.abs(highest - top) > 3 ? highest : 0.8 * top + 0.2 * highest;
    page.show(answer, [data.uniform - 2, top]);
    pen.show(answer.hypotheses, sent.camera, sent.model.part, object);
    if (answer.translation) {
      const [x, y, z] = answer.translation.map((value) => Number(value.toPrecision(4)));
      $("place").textContent = `The part is at (${x}, ${y}, ${z}), x right, y up, z towards the viewer, in ${answer.unit === "that of the mesh" ? "the mesh's unit" : answer.unit}.`;
    }
    clearTimeout(settled);
    settled = setTimeout(() => ($("spoken").textContent = answer.verdict), 700); // a screen reader hears the last word, not each
    Aquamam.live.sent = sent;
  }

  // --- begin --------------------------------------------------------------------------------------------------------
  Aquamam.live = { answers: 0, ball: page.ball };
  $("choose").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", () => {
    useFile($("file").files[0]);
    $("file").value = "";
  });
  $("whole").addEventListener("click", () => {
    pen.clear();
    refresh();
    ask();
  });
  $("lens").addEventListener("change", () => {
    refresh();
    ask();
  });
  $("turn").addEventListener("click", useObject);
  $("spin").addEventListener("click", () => spin(!spinning));
  $("random").addEventListener("click", randomTurn);
  data.models.forEach((each) => $("models").append(make("option", { value: each.name, textContent: each.name })));
  $("models-label").hidden = data.models.length < 2;
  $("models").addEventListener("change", () => useModel(data.models.find((each) => each.name === $("models").value)));
  let within = 0;
  addEventListener("dragenter", (event) => {
    event.preventDefault();
    within += 1;
    $("drop").hidden = false;
  });
  addEventListener("dragleave", () => {
    within -= 1;
    if (within <= 0) $("drop").hidden = true;
  });
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    within = 0;
    $("drop").hidden = true;
    useFile(event.dataTransfer.files[0]);
  });
  addEventListener("paste", (event) => useFile([...event.clipboardData.files].find((file) => file.type.startsWith("image/"))));
  listenToSource();
  useModel(model);
})();
