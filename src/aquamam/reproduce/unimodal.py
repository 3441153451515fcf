r"""Figure 1 of the paper: the most likely single Bingham distribution for two rotations peaks at a rotation that is neither.

Its density is $2 \exp(\sum_i z_i y_i^2) / F(z)$. The likelihood's mode is the main eigenvector of the scatter matrix, the middle of the
shortest way between the two; two rotations do not fill the matrix's other directions, so their concentrations grow to the bound.
"""

import math
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from matplotlib import figure as plots
from torch import Tensor
from tqdm import trange

from aquamam.baselines.bingham import BinghamMixture
from aquamam.errors import InputError
from aquamam.reproduce.results import BLACK, BLUE, GREY, ORANGE, save_figure, style
from aquamam.reproduce.sections import Figure, Row, Section, finish
from aquamam.rendering.render import RenderSettings, render
from aquamam.geometry.rotations import chordal_mean, geodesic_angle, multiply, rotvec_to_quat, slerp
from aquamam.rendering.solids import solid

MAX_CONCENTRATION = 1000.0  # a spread of 2.6 degrees; without a bound two rotations have no best one


def two_rotations() -> Float[Tensor, "2 4"]:
    """Two poses of the die, 110 degrees apart, that show other faces than their middle does."""
    first = rotvec_to_quat(torch.tensor([0.45, -0.75, 0.25], dtype=torch.float64))
    axis = torch.tensor([0.9, 0.35, -0.25], dtype=torch.float64)
    return torch.stack([first, multiply(rotvec_to_quat(axis / axis.norm() * math.radians(110)), first)])


def fit(q: Float[Tensor, "n 4"], steps: int, seed: int) -> tuple[BinghamMixture, list[float]]:
    """Adam on minus the mean log-likelihood of one Bingham distribution; returns it and the curve."""
    generator = torch.Generator().manual_seed(seed)
    turns = torch.randn(2, 4, generator=generator, dtype=torch.float64).requires_grad_()
    log_concentration = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([turns, log_concentration], lr=0.05)

    def distribution() -> BinghamMixture:
        left, right = (turns / turns.norm(dim=-1, keepdim=True))[:, None, None].unbind()
        concentration = log_concentration.clamp_max(math.log(MAX_CONCENTRATION)).exp()
        z = torch.cat([-concentration, torch.zeros(1, dtype=torch.float64)])
        return BinghamMixture(torch.zeros(1, 1, dtype=torch.float64), left, right, z[None, None])

    curve = []
    for step in trange(steps, desc="unimodal", unit="step", disable=None):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * 0.01 ** (step / steps)
        loss = -distribution().log_prob(q[:, None]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(float(loss.detach()))
    with torch.no_grad():
        return distribution(), curve


def run(out: Path, *, seed: int = 0, steps: int = 600) -> dict[str, Any]:
    """Fit, draw the dice; returns what OUT/unimodal.json holds."""
    if steps < 1:
        raise InputError(f"steps must be a positive whole number, got {steps}.")
    q = two_rotations()
    posterior, _ = fit(q, steps, seed)
    estimate = posterior.mode[0].double()
    middle = chordal_mean(q)

    def angle(a: Tensor, b: Tensor) -> float:
        return math.degrees(geodesic_angle(a, b))

    log_p = posterior.log_prob(torch.stack([q[0], q[1], estimate])[:, None])[:, 0].tolist()
    result = {
        "rotations_xyzw": q.tolist(),
        "estimate_xyzw": estimate.tolist(),
        "angle_between_deg": angle(q[0], q[1]),
        "angle_from_estimate_deg": [angle(q[0], estimate), angle(q[1], estimate)],
        "angle_to_closed_form_deg": angle(estimate, middle),
        "log_density_of_rotations": log_p[:2],
        "log_density_of_estimate": log_p[2],
        "concentrations": sorted((-posterior.z[0, 0, :3]).tolist()),
        "largest_concentration_allowed": MAX_CONCENTRATION,
        "steps": steps,
        "seed": seed,
    }
    way = slerp(q[0], q[1], torch.linspace(-0.35, 1.35, 241, dtype=torch.float64))
    draw(out / "unimodal.png", q, estimate, way, posterior)
    between = result["angle_from_estimate_deg"]
    section = Section(
        name="unimodal",
        title="Figure 1: the likeliest single Bingham distribution peaks between two rotations",
        rows=(
            Row(what="angle from the estimate to R1 and R2 (deg)", here=f"{between[0]:.2f}, {between[1]:.2f}", paper="a rotation never observed"),
            Row(what="log density at R1, R2 and the estimate", here=f"{log_p[0]:.2f}, {log_p[1]:.2f}, {log_p[2]:.2f}"),
            Row(what="angle to the closed-form estimate (deg)", here=f"{result['angle_to_closed_form_deg']:.4f}"),
        ),
        text=(
            f"R1 and R2 are {result['angle_between_deg']:.0f} degrees apart. The estimate lies in the middle, where no data is. The paper does not "
            f"print its rotations; these are ours. Concentrations across the way from R1 to R2 are bounded at {MAX_CONCENTRATION:.0f}: two "
            "rotations alone would drive them to infinity without moving the estimate.",
        ),
        figures=(Figure(file="unimodal.png", caption="The identity, the two rotations of the data, the estimate, and the fitted density on the way from R1 to R2."),),
    )  # fmt: skip
    return finish(out, section, result)


def draw(path: Path, q: Tensor, estimate: Tensor, way: Tensor, posterior: BinghamMixture) -> Path:
    """Four dice and the density along the way between the two rotations."""
    identity = torch.tensor([0.0, 0, 0, 1], dtype=torch.float64)
    poses = torch.stack([identity, q[0], q[1], estimate])
    pictures = render(solid("die").mesh, poses.numpy(), RenderSettings(size=320))
    names = (
        "$R_0$: the identity",
        "$R_1$: in the data",
        "$R_2$: in the data",
        r"$\widehat{R}$: the estimate, never seen",
    )
    with style():
        figure = plots.Figure(figsize=(11, 5.4))
        grid = figure.add_gridspec(2, 4, height_ratios=[1.55, 1])
        for column, (name, picture) in enumerate(zip(names, pictures)):
            axis = figure.add_subplot(grid[0, column])
            axis.imshow(picture)
            axis.set(xticks=[], yticks=[])
            axis.set_title(name, color=ORANGE if column == 3 else BLACK)
            for spine in axis.spines.values():
                spine.set(visible=True, color=ORANGE if column == 3 else GREY, linewidth=1.8 if column == 3 else 0.8)
        axis = figure.add_subplot(grid[1, :])
        place = torch.linspace(-0.35, 1.35, len(way), dtype=torch.float64)
        density = posterior.log_prob(way[:, None])[:, 0].exp()
        axis.plot(place, density, color=BLUE, lw=2)
        axis.fill_between(place, density, color=BLUE, alpha=0.12, lw=0)
        for x, name, colour in ((0, "$R_1$", BLACK), (1, "$R_2$", BLACK), (0.5, r"$\widehat{R}$", ORANGE)):
            axis.axvline(x, color=colour, ls="--" if x != 0.5 else "-", lw=1.4)
            axis.text(x + 0.012, float(density.max()) * 1.02, name, color=colour, va="bottom")
        axis.set(xlim=(-0.35, 1.35), ylim=(0, float(density.max()) * 1.22), ylabel="fitted density")
        axis.set_xticks([0, 0.5, 1], ["0", "½", "1"])
        axis.set_xlabel("place on the shortest way from $R_1$ to $R_2$")
        return save_figure(figure, path)
