// What three.min.js holds. To build it anew: npm install three esbuild, and in this folder
//   npx esbuild three.entry.js --bundle --minify --format=iife --global-name=THREE --target=es2020 --outfile=three.min.js
// and put three's licence above it, since the file travels inside pages.
export {
  BufferAttribute, BufferGeometry, Color, ConeGeometry, CylinderGeometry, DoubleSide, GLSL3, Group, LineBasicMaterial, LineLoop,
  LineSegments, LinearFilter, LinearMipmapLinearFilter, LinearSRGBColorSpace, Mesh, MeshBasicMaterial, NoColorSpace, PerspectiveCamera,
  Points, Quaternion, RepeatWrapping, Scene, ShaderMaterial, SphereGeometry, Texture, Vector3, WebGLRenderer,
} from 'three';
export { OrbitControls } from 'three/examples/jsm/controls/OrbitControls.js';
