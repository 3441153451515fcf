r"""The equivolumetric grid of $72 · 8^k$ rotations, a HEALPix grid of directions times a circle, and its cells.

The grid of Yershova et al. (2010) as IPDF uses it: $R = R_x(a) R_z(b) R_x(c)$, where azimuth a and polar angle b are
the centre of a HEALPix pixel (Górski et al. 2005), $12 · 4^k$ of them in ring order, and the tilt c is one of
$6 · 2^k$ multiples of $2π / (6 · 2^k)$. Index = tilt index · $12 · 4^k$ + pixel.

A cell holds the rotations that take $e_x$ into the pixel and whose twist about $e_x$, seen from the pixel's centre,
is within half a step of the tilt. The Haar measure is $da \, d(\cos b) \, dc$, and the twist differs from c by a
function of the direction alone: all cells have equal volumes. (Arcs of c itself would do that too, but pixels at the
poles span a quarter turn of azimuth, and cells there would never get shorter than 90 degrees.) A rotation is about
28.9 / 2^k degrees from the centre of its cell on average. A direction is kept as $\cos^2(b/2)$ and $\sin^2(b/2)$,
which lose nothing at the poles.
"""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from aquamam.errors import require
from aquamam.geometry.directional import draw_uniform
from aquamam.geometry.rotations import Generator, canonical, inverse, multiply

MAX_LEVEL = 12  # 0.01 degrees between neighbours; indices are far inside int64 and centres inside float64
MAX_LEVEL_AT_ONCE = 6  # 19 million rotations, 600 MB


def grid_size(k: int) -> int:
    """Number of rotations of level k, $72 · 8^k$."""
    good = isinstance(k, int) and 0 <= k <= MAX_LEVEL
    require(good, f"the grid level k must be an integer from 0 to {MAX_LEVEL}, got {k!r}; IPDF evaluates at 5.")
    return 72 * 8**k


def cell_volume(k: int) -> float:
    """Volume of every cell of level k, of pi**2 in all."""
    return math.pi**2 / grid_size(k)


def grid_points(index: Int64[Tensor, "*batch"], k: int) -> Float64[Tensor, "*batch 4"]:
    """The grid rotations of level k with these indices, canonical xyzw."""
    tilt, pixel = index // (12 * 4**k), index % (12 * 4**k)
    return _compose(*_pixel_centre(pixel, 2**k), tilt.double() * _tilt_step(k))


def so3_grid(k: int, *, dtype: torch.dtype = torch.float64) -> Float[Tensor, "n 4"]:
    """All rotations of level k, canonical xyzw."""
    rule = f"the grid comes at once up to level {MAX_LEVEL_AT_ONCE}"
    require(k <= MAX_LEVEL_AT_ONCE, f"{rule}, got k={k}; finer grids come in pieces from so3_grid_chunks.")
    return torch.cat(list(so3_grid_chunks(k, dtype=dtype)))


def so3_grid_chunks(
    k: int, *, chunk: int = 2**18, dtype: torch.dtype = torch.float64
) -> Iterator[Float[Tensor, "_ 4"]]:
    """The rotations of level k in order, canonical xyzw, at most `chunk` at a time."""
    size = grid_size(k)
    for start in range(0, size, chunk):
        yield grid_points(torch.arange(start, min(start + chunk, size)), k).to(dtype)


def grid_cell_of(q: Float[Tensor, "*batch 4"], k: int) -> Int64[Tensor, "*batch"]:
    """Index of the cell of level k that contains each rotation, xyzw of either sign."""
    q = canonical(q.double())
    x, y, z, w = q.unbind(-1)
    up, down, azimuth = w.square() + x.square(), y.square() + z.square(), torch.atan2(x, w) + torch.atan2(-y, z)
    face, x, y = _to_face(up, down, azimuth)
    corner = 2**k - 1  # a point on the upper edge of a face belongs to its last pixel
    ix, iy = ((2**k * t).floor().long().clamp(0, corner) for t in (x, y))
    pixel = _ring_index(face, ix, iy, 2**k)
    arc = (_twist(*_pixel_centre(pixel, 2**k), q) / _tilt_step(k)).round().long() % (6 * 2**k)
    return arc * (12 * 4**k) + pixel


def random_in_cell(
    index: Int64[Tensor, "*batch"], k: int, *, generator: Generator = None
) -> Float64[Tensor, "*batch 4"]:
    """One rotation drawn uniformly from each of these cells of level k, canonical xyzw."""
    nside, pixels = 2**k, 12 * 4**k
    noise = draw_uniform((*index.shape, 3), generator, index.device)
    centre = _pixel_centre(index % pixels, nside)
    face, x, y = _to_face(*centre)
    x, y = (((nside * t).floor() + noise[..., i]) / nside for i, t in enumerate((x, y)))
    direction = _from_face(face, x, y)
    offset = _twist(*centre, _compose(*direction, torch.zeros_like(x)))
    tilt = (index // pixels + noise[..., 2] - 0.5) * _tilt_step(k)
    return _compose(*direction, tilt - offset)


def _tilt_step(k: int) -> float:
    return 2 * math.pi / (6 * 2**k)


def _compose(up: Tensor, down: Tensor, azimuth: Tensor, tilt: Tensor) -> Tensor:
    """The quaternion of $R_x(a) R_z(b) R_x(c)$ from cos^2(b/2), sin^2(b/2), a and c."""
    cosine, sine = up.clamp_min(0).sqrt(), down.clamp_min(0).sqrt()
    total, difference = (azimuth + tilt) / 2, (azimuth - tilt) / 2
    x, w = cosine * torch.sin(total), cosine * torch.cos(total)
    y, z = -sine * torch.sin(difference), sine * torch.cos(difference)
    return canonical(torch.stack((x, y, z, w), -1))


def _twist(up: Tensor, down: Tensor, azimuth: Tensor, q: Tensor) -> Tensor:
    """Angle about e_x by which q differs from the shortest way from a direction's untilted rotation to its own."""
    seen = multiply(inverse(_compose(up, down, azimuth, torch.zeros_like(azimuth))), q)
    return 2 * torch.atan2(seen[..., 0], seen[..., 3])


def _pixel_centre(pixel: Tensor, nside: int) -> tuple[Tensor, Tensor, Tensor]:
    """cos^2(b/2), sin^2(b/2) and azimuth of pixels in ring order, float64."""
    start, quarter = _rings(nside, pixel.device)
    ring = torch.searchsorted(start, pixel.contiguous(), right=True)  # from 1
    place = (pixel - start[ring - 1]).double() + 0.5 - 0.5 * _unshifted(ring, nside)
    return *_latitude(ring.double() / nside), place * (math.pi / 2) / quarter[ring - 1]


def _rings(nside: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The first pixel of rings 1 to 4 nside - 1, and how many a quarter of each has: 1, ..., nside, nside, ..., 1."""
    ring = torch.arange(1, 4 * nside, device=device)
    quarter = torch.minimum(ring, 4 * nside - ring).clamp_max(nside)
    return 4 * (quarter.cumsum(0) - quarter), quarter


def _unshifted(ring: Tensor, nside: int) -> Tensor:
    """1 for every other ring of the belt, whose first pixel's centre is at azimuth 0; others start with an edge."""
    return ((ring > nside) & (ring < 3 * nside)).long() * ((ring - nside) % 2)


def _latitude(ring: Tensor) -> tuple[Tensor, Tensor]:
    """cos^2(b/2) and sin^2(b/2) of rings counted in nside, 0 at the north pole and 4 at the south pole.

    In the belt between 1 and 3 z is linear; in the caps the distance to the pole is quadratic.
    """
    near, z = torch.minimum(ring, 4 - ring).clamp(0, 1).square() / 6, (2 - ring) * (2 / 3)
    up = torch.where(ring < 1, 1 - near, torch.where(ring > 3, near, (1 + z) / 2))
    down = torch.where(ring < 1, near, torch.where(ring > 3, 1 - near, (1 - z) / 2))
    return up, down


def _to_face(up: Tensor, down: Tensor, azimuth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The face, 0 to 11, of directions and their place in its unit square."""
    quarter = torch.remainder(azimuth * (2 / math.pi), 4)
    quarter = torch.where(quarter < 4, quarter, 0.0)  # remainder rounds tiny negative numbers to 4
    # Belt |z| <= 2/3: straight lines; the falling and rising edge coordinates count the faces.
    z = up - down
    falling, rising = quarter + 0.5 - 0.75 * z, quarter + 0.5 + 0.75 * z
    row, column = falling.floor(), rising.floor()
    belt_face = torch.where(row == column, row % 4 + 4, torch.where(row < column, row % 4, column % 4 + 8))
    belt_x, belt_y = rising - column, 1 - (falling - row)
    # Caps: the four triangles narrow like the square root of the distance to the pole.
    width = (6 * torch.minimum(up, down)).sqrt()
    sector = quarter.floor()
    a, b = (quarter - sector) * width, (1 - (quarter - sector)) * width
    north = up > down
    cap_face = torch.where(north, sector, sector + 8)
    cap_x, cap_y = torch.where(north, 1 - b, a), torch.where(north, 1 - a, b)
    belt = width >= 1
    face = torch.where(belt, belt_face, cap_face).long()
    return face, torch.where(belt, belt_x, cap_x), torch.where(belt, belt_y, cap_y)


def _face_corner(face: Tensor) -> tuple[Tensor, Tensor]:
    """Distance of a face's southern corner from the north pole, and azimuth of its middle in eighths of a turn."""
    return face // 4 + 2, 2 * (face % 4) + (face // 4 != 1).long()


def _from_face(face: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """cos^2(b/2), sin^2(b/2) and azimuth of a place in a face."""
    south, middle = _face_corner(face)
    ring = south - x - y
    width = torch.minimum(ring, 4 - ring).clamp(0, 1)
    azimuth = (math.pi / 4) * (middle + (x - y) / torch.where(width > 0, width, 1.0))
    return *_latitude(ring), azimuth


def _ring_index(face: Tensor, ix: Tensor, iy: Tensor, nside: int) -> Tensor:
    """Ring-order index of the pixel in column ix and row iy of a face."""
    south, middle = _face_corner(face)
    ring = south * nside - ix - iy - 1
    start, quarter = (values[ring - 1] for values in _rings(nside, face.device))
    place = (middle * quarter + ix - iy - 1 + _unshifted(ring, nside)).div(2, rounding_mode="floor")
    return start + place % (4 * quarter)
