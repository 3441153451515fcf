// A box that is drawn on the picture, and the poses that come back for it: contour and axes of every mode, with its share.
(() => {
  const Aquamam = window.Aquamam;
  const COLOURS = ["#19e3ff", "#ff4fa3", "#ffd23f", "#8dff5a", "#b79bff", "#ffffff"]; // as `aquamam plot` has them
  const AXES = ["#e5533d", "#3dbb6c", "#5b8cff"];
  const SMALLEST = 8; // pixels of a box; anything less was a click

  Aquamam.BoxPen = class {
    /** host shows `picture` as large as it fits; `changed` is called when a box was drawn or taken away. */
    constructor(host, picture, changed) {
      Object.assign(this, { picture, changed, box: null, poses: null });
      const canvas = (this.canvas = Aquamam.make("canvas", { className: "pen", hidden: true }));
      host.append(canvas);
      new ResizeObserver(() => this.draw()).observe(host);
      let start = null;
      canvas.addEventListener("pointerdown", (event) => {
        start = this.at(event);
        canvas.setPointerCapture(event.pointerId);
      });
      canvas.addEventListener("pointermove", (event) => {
        if (!start) return;
        const end = this.at(event), low = [0, 1].map((k) => Math.min(start[k], end[k]));
        this.box = [...low, Math.abs(end[0] - start[0]), Math.abs(end[1] - start[1])];
        this.poses = null;
        this.draw();
      });
      for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => {
        if (!start) return;
        start = null;
        if (!this.box || Math.min(this.box[2], this.box[3]) < SMALLEST) this.box = null;
        else this.box = this.box.map((x) => Math.round(10 * x) / 10);
        this.draw();
        this.changed();
      });
    }

    clear() {
      this.box = this.poses = null;
      this.draw();
    }

    /** Where the picture lies in the canvas: its scale and its corner, in CSS pixels. */
    fit() {
      const { clientWidth: w, clientHeight: h } = this.canvas, { naturalWidth: a, naturalHeight: b } = this.picture;
      const scale = Math.min(w / (a || 1), h / (b || 1));
      return { scale, x: (w - a * scale) / 2, y: (h - b * scale) / 2 };
    }

    /** The pixel of the picture under a pointer. */
    at(event) {
      const { scale, x, y } = this.fit(), corner = this.canvas.getBoundingClientRect();
      const inside = (value, most) => Math.min(Math.max(value / scale, 0), most);
      return [inside(event.clientX - corner.left - x, this.picture.naturalWidth), inside(event.clientY - corner.top - y, this.picture.naturalHeight)];
    }

    /** poses: hypotheses of /v1/posterior; camera: [fx, fy, cx, cy]; part: {radius, centre}; object: as object.js reads it, or null. */
    show(poses, camera, part, object) {
      this.poses = poses && camera && part ? { list: poses.slice(0, COLOURS.length), camera, part, mesh: object && Aquamam.meshOf(object) } : null;
      this.draw();
    }

    draw() {
      const canvas = this.canvas, ratio = window.devicePixelRatio || 1, { scale, x, y } = this.fit();
      if (canvas.hidden || !canvas.clientWidth) return;
      const size = { width: Math.round(canvas.clientWidth * ratio), height: Math.round(canvas.clientHeight * ratio) };
      Object.assign(canvas, size);
      const onPicture = (pen) => pen.setTransform(scale * ratio, 0, 0, scale * ratio, x * ratio, y * ratio);
      const pen = canvas.getContext("2d"), thin = 1 / scale;
      onPicture(pen);
      if (this.box) {
        pen.setLineDash([5 * thin, 4 * thin]);
        for (const [colour, width] of [["#000a", 3], ["#fff", 1.4]]) {
          Object.assign(pen, { strokeStyle: colour, lineWidth: width * thin });
          pen.strokeRect(...this.box);
        }
        pen.setLineDash([]);
      }
      if (!this.poses) return;
      [...this.poses.list.entries()].reverse().forEach(([k, pose]) => {
        const layer = Aquamam.make("canvas", size).getContext("2d");
        onPicture(layer);
        this.drawPose(layer, pose, COLOURS[k], thin);
        pen.setTransform(1, 0, 0, 1, 0, 0);
        pen.drawImage(layer.canvas, 0, 0);
        onPicture(pen);
      });
    }

    drawPose(pen, pose, colour, thin) {
      const { camera: [fx, fy, cx, cy], part, mesh } = this.poses, [tx, ty, tz] = pose.translation;
      const R = Aquamam.matrixOf(pose.quaternion_xyzw);
      const project = (v) => {
        const [a, b, c] = R.map((row) => row[0] * v[0] + row[1] * v[1] + row[2] * v[2]);
        const depth = -(c + tz);
        return [(fx * (a + tx)) / depth + cx + 0.5, (-fy * (b + ty)) / depth + cy + 0.5];
      };
      if (mesh) {
        // a wide line about all that faces us, less what faces us: the contour
        const grow = part.radius / mesh.radius, outline = new Path2D();
        const corners = mesh.vertices.map((v) => project(v.map((x, k) => x * grow + part.centre[k])));
        for (const [i, j, k] of mesh.faces) {
          const [a, b, c] = [corners[i], corners[j], corners[k]];
          if ((b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]) >= 0) continue;
          outline.moveTo(...a);
          outline.lineTo(...b);
          outline.lineTo(...c);
          outline.closePath();
        }
        Object.assign(pen, { strokeStyle: colour, lineWidth: 4 * thin, lineJoin: "round", globalCompositeOperation: "source-over" });
        pen.stroke(outline);
        pen.globalCompositeOperation = "destination-out";
        pen.fill(outline);
        pen.globalCompositeOperation = "source-over";
      }
      const middle = project(part.centre);
      AXES.forEach((paint, axis) => {
        const end = project(part.centre.map((x, k) => x + (k === axis ? 0.7 * part.radius : 0)));
        for (const [stroke, width] of [["#000a", 4], [paint, 2.2]]) {
          Object.assign(pen, { strokeStyle: stroke, lineWidth: width * thin });
          pen.beginPath();
          pen.moveTo(...middle);
          pen.lineTo(...end);
          pen.stroke();
        }
      });
      Object.assign(pen, { font: `600 ${13 * thin}px system-ui, sans-serif`, lineWidth: 3 * thin, strokeStyle: "#000c", fillStyle: colour });
      const words = [`${Math.round(100 * pose.score)} %`, middle[0] + 6 * thin, middle[1] - 6 * thin];
      pen.strokeText(...words);
      pen.fillText(...words);
    }
  };

  Aquamam.matrixOf = ([x, y, z, w]) => [
    [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
    [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
    [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
  ];
})();
