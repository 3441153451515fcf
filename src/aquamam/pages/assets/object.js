// The object under a rotation, drawn with the camera, light and colours of `aquamam render`; its axes where the object is not known.
(() => {
  const Aquamam = (window.Aquamam = window.Aquamam || {});

  const VERTEX = `
    attribute vec3 paint; attribute vec2 place;
    varying vec3 seen; varying vec3 facing; varying vec3 painted; varying vec2 at;
    void main() {
      vec4 p = modelViewMatrix * vec4(position, 1.0);
      seen = p.xyz;
      facing = mat3(modelViewMatrix) * normal;
      painted = paint; at = place;
      gl_Position = projectionMatrix * p;
    }`;
  // The renderer's own rule: colour * (ambient + diffuse max(0, n.l)), normals facing towards the viewer, numbers as they are (no gamma).
  const FRAGMENT = `
    varying vec3 seen; varying vec3 facing; varying vec3 painted; varying vec2 at;
    uniform sampler2D picture; uniform float textured, ambient, diffuse; uniform vec3 light;
    void main() {
      vec3 n = normalize(facing);
      if (dot(n, seen) > 0.0) n = -n;
      vec3 colour = textured > 0.5 ? texture2D(picture, at).rgb : painted;
      gl_FragColor = vec4(min(colour * (ambient + diffuse * max(dot(n, light), 0.0)), 1.0), 1.0);
    }`;

  const decode = (text, Kind) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    return new Kind(bytes.buffer);
  };

  class ObjectView {
    /** object: {vertices, faces, normals?, uv?, colours?, texture?, settings} as pages/posterior.py writes it, or null for axes. */
    constructor(host, object) {
      this.host = host;
      this.object = object;
      this.renderer = new THREE.WebGLRenderer({ antialias: true, alpha: true, preserveDrawingBuffer: true });
      this.renderer.outputColorSpace = THREE.LinearSRGBColorSpace;
      this.canvas = this.renderer.domElement;
      host.append(this.canvas);
      this.scene = new THREE.Scene();
      const settings = (object && object.settings) || { distance: 8, fov_deg: 26.98, near: 0.05 };
      this.camera = new THREE.PerspectiveCamera(settings.fov_deg, 1, settings.near, 50 * settings.distance);
      this.camera.position.z = settings.distance;
      this.body = object ? this.makeMesh(object) : makeAxes();
      this.scene.add(this.body);
      this.q = [0, 0, 0, 1];
      new ResizeObserver(() => this.resize()).observe(host);
      this.resize();
    }

    makeMesh(object) {
      const vertices = decode(object.vertices, Float32Array), faces = decode(object.faces, Uint32Array);
      const corners = faces.length, position = new Float32Array(3 * corners);
      faces.forEach((v, k) => position.set(vertices.subarray(3 * v, 3 * v + 3), 3 * k));
      const geometry = new THREE.BufferGeometry();
      geometry.setAttribute("position", new THREE.BufferAttribute(position, 3));
      if (object.normals) geometry.setAttribute("normal", new THREE.BufferAttribute(decode(object.normals, Float32Array), 3));
      else geometry.computeVertexNormals(); // corners are not shared: every face is flat
      const paint = new Float32Array(3 * corners);
      if (object.colours) decode(object.colours, Uint8Array).forEach((value, k) => (paint[k] = value / 255));
      else for (let k = 0; k < paint.length; k++) paint[k] = object.settings.colour[k % 3] / 255;
      geometry.setAttribute("paint", new THREE.BufferAttribute(paint, 3));
      geometry.setAttribute("place", new THREE.BufferAttribute(object.uv ? decode(object.uv, Float32Array) : new Float32Array(2 * corners), 2));
      const light = new THREE.Vector3(...object.settings.light).normalize();
      const uniforms = {
        picture: { value: null }, textured: { value: 0 }, light: { value: light },
        ambient: { value: object.settings.ambient }, diffuse: { value: object.settings.diffuse },
      };
      if (object.texture) this.loadTexture(object.texture, uniforms);
      const material = new THREE.ShaderMaterial({ vertexShader: VERTEX, fragmentShader: FRAGMENT, uniforms, side: THREE.DoubleSide });
      return new THREE.Mesh(geometry, material);
    }

    loadTexture(source, uniforms) {
      const image = new Image();
      this.ready = new Promise((done) => {
        image.onload = () => {
          const texture = new THREE.Texture(image);
          Object.assign(texture, { colorSpace: THREE.NoColorSpace, wrapS: THREE.RepeatWrapping, wrapT: THREE.RepeatWrapping });
          Object.assign(texture, { minFilter: THREE.LinearMipmapLinearFilter, magFilter: THREE.LinearFilter });
          texture.anisotropy = this.renderer.capabilities.getMaxAnisotropy();
          texture.needsUpdate = true;
          uniforms.picture.value = texture;
          uniforms.textured.value = 1;
          this.draw();
          done();
        };
      });
      image.src = source;
    }

    /** Show the object under a rotation, a unit quaternion xyzw: x_cam = R x_obj. */
    show(q) {
      this.q = q;
      this.draw();
    }

    resize() {
      const box = this.host.getBoundingClientRect();
      if (!box.width || !box.height) return;
      // drawn larger than shown: the browser's scaling smooths what antialiasing leaves
      this.renderer.setPixelRatio(Math.min(2 * (window.devicePixelRatio || 1), 3));
      this.renderer.setSize(box.width, box.height);
      this.camera.aspect = box.width / box.height;
      this.camera.updateProjectionMatrix();
      this.draw();
    }

    draw() {
      if (!this.body) return;
      this.body.quaternion.set(...this.q).normalize();
      this.renderer.render(this.scene, this.camera);
    }
  }

  function makeAxes() {
    const group = new THREE.Group();
    [["#d5402f", [0, 0, -1]], ["#2f9e57", null], ["#3a6fd8", [1, 0, 0]]].forEach(([colour, axis]) => {
      const material = new THREE.MeshBasicMaterial();
      material.color.setRGB(...Aquamam.colourAt([colour, colour], 0), THREE.LinearSRGBColorSpace);
      const arrow = new THREE.Group();
      const shaft = new THREE.Mesh(new THREE.CylinderGeometry(0.06, 0.06, 1.2, 20), material);
      shaft.position.y = 0.6;
      const head = new THREE.Mesh(new THREE.ConeGeometry(0.17, 0.4, 28), material);
      head.position.y = 1.4;
      arrow.add(shaft, head);
      if (axis) arrow.quaternion.setFromAxisAngle(new THREE.Vector3(...axis), Math.PI / 2);
      group.add(arrow);
    });
    const middle = new THREE.MeshBasicMaterial();
    middle.color.setRGB(0.5, 0.5, 0.53, THREE.LinearSRGBColorSpace);
    group.add(new THREE.Mesh(new THREE.SphereGeometry(0.13, 20, 14), middle));
    return group;
  }

  /** An object's vertices and faces as lists of three, and its radius. */
  Aquamam.meshOf = (object) => {
    const threes = (flat) => Array.from({ length: flat.length / 3 }, (_, k) => [...flat.subarray(3 * k, 3 * k + 3)]);
    const vertices = threes(decode(object.vertices, Float32Array));
    return { vertices, faces: threes(decode(object.faces, Uint32Array)), radius: Math.max(...vertices.map((v) => Math.hypot(...v))) };
  };

  Aquamam.ObjectView = ObjectView;
})();
