"""What requests and answers hold, and how each kind of request is answered from a posterior.

The service's OpenAPI description is made from these.
"""

import base64
import secrets
from typing import Annotated, Any, ClassVar, Literal

import torch
from PIL import Image
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, PrivateAttr
from pydantic_core import from_json
from torch import Tensor

from aquamam.errors import InputError
from aquamam.geometry.camera import Camera, Crop, cut
from aquamam.geometry.rotations import as_unit_quat
from aquamam.network.images import to_rgb
from aquamam.network.poses import Sighting, sighted
from aquamam.plotting.cloud import make_cloud
from aquamam.posterior.answers import answers
from aquamam.serving.batcher import Encoded
from aquamam.serving.gate import Limits, Refusal

Seed = Annotated[int, Field(ge=0, lt=2**63)]
Quaternion = Annotated[list[FiniteFloat], Field(min_length=4, max_length=4)]


def _decoded(value: Any) -> Any:
    """An image in JSON is base64 or a data URI, in a form it is a file."""
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value.partition(",")[2] if value.startswith("data:") else value, validate=True)
    except ValueError:
        raise ValueError("this is not base64") from None


def _listed(value: Any, info: Any) -> Any:
    """A list in JSON is JSON or numbers between commas in a form; one that is too long is refused unread."""
    if isinstance(value, str):
        value = from_json(value if value.startswith("[") else f"[{value}]")
    if isinstance(value, list) and info.context is not None and len(value) > info.context.rotations:
        raise ValueError(f"at most {info.context.rotations:,} in a request")
    return value


Image64 = Annotated[bytes, BeforeValidator(_decoded), Field(json_schema_extra={"format": "byte"})]
Numbers = Annotated[list[FiniteFloat], BeforeValidator(_listed)]
Rotations = Annotated[list[Quaternion], BeforeValidator(_listed)]


def rounded(values: Tensor, digits: int) -> list[Any]:
    return torch.round(values.double(), decimals=digits).tolist()


class Asked(BaseModel):
    """A request; a field that is not known is an error, since it may be one that was mistyped."""

    model_config = ConfigDict(extra="forbid")
    clusters: ClassVar[bool] = False  # whether modes are found, whose cost grows with the square of the samples

    image: Image64 = Field(description="the image's file in base64")
    model: str = Field("", max_length=200, description="one of /v1/models; the first one if not given")

    def cut(self, picture: Image.Image, size: int) -> Image.Image:
        """What the network sees of a picture."""
        return picture

    def cost(self, limits: Limits) -> int:
        """How many rotations the request needs, if it may have that many."""
        samples = getattr(self, "samples", 0)
        if self.clusters and samples > limits.samples:
            raise Refusal(422, f"samples: at most {limits.samples:,} in a request.")
        total = samples + getattr(self, "uniform", 0) + len(getattr(self, "rotations", ()))
        if total > limits.rotations:
            raise Refusal(422, f"samples and rotations: at most {limits.rotations:,} in a request.")
        return total

    def answer(self, encoded: Encoded, i: int) -> dict[str, Any]:
        """What the network's thread does for image i of a batch."""
        raise NotImplementedError


class AboutBox(Asked):
    """A request that may be about a box of its picture."""

    clusters = True
    box: Numbers | None = Field(None, min_length=4, max_length=4, description="left, top, width, height in pixels")
    camera: Numbers | None = Field(
        None, min_length=4, max_length=9, description="fx, fy, cx, cy in pixels, and k1, k2, p1, p2, k3; with a box"
    )
    frame: Literal["opengl", "opencv"] = Field("opengl", description="of the camera, in answers about a box")
    seed: Seed = Field(0, description="of the samples")
    _cut: tuple[Image.Image, Crop] | None = PrivateAttr(None)

    def cut(self, picture: Image.Image, size: int) -> Image.Image:
        known = None
        if self.camera is not None:
            fx, fy, cx, cy, *distortion = self.camera
            known = Camera(fx=fx, fy=fy, cx=cx, cy=cy, distortion=tuple(distortion))
        if self.box is None:
            if known is not None:
                raise InputError("camera: needs a box.")
            return picture
        self._cut = cut(to_rgb(picture), self.box, size, known)
        return self._cut[0]

    def seen(self, encoded: Encoded, i: int) -> Sighting | None:
        """What the model says of the box, if there is one."""
        if self._cut is None:
            return None
        return sighted(encoded.model, encoded.row(i), *self._cut, known=self.camera is not None, frame=self.frame)


class PredictRequest(AboutBox):
    """The rotation, how sure it is, what else fits"""

    samples: int = Field(500, ge=0, description="drawn for shares and modes; 0 gives the rotation alone")
    strategy: Literal["greedy", "beam", "expected"] = "greedy"
    matrix: bool = Field(False, description="also give the rotation as a matrix")

    def answer(self, encoded: Encoded, i: int) -> dict[str, Any]:
        """The same record as `aquamam predict --json` gives for the same image, samples and seed."""
        model = encoded.model
        drawn: dict[str, Any] = {"strategy": self.strategy, "generator": model.generator(self.seed)}
        drawn["symmetry"] = model.symmetry
        if (seen := self.seen(encoded, i)) is not None:
            return seen.to_dict(self.samples, matrix=self.matrix, **drawn)
        if self.samples == 0 and self.strategy == "greedy":
            return encoded.plain[i].to_dict(matrix=self.matrix)
        (found,) = answers(encoded.row(i), self.samples, **drawn)
        return found.to_dict(matrix=self.matrix)


class SampleRequest(Asked):
    """Rotations drawn from the posterior"""

    samples: int = Field(100, ge=1)
    seed: Seed | None = Field(None, description="of the samples; a new one if not given")

    def answer(self, encoded: Encoded, i: int) -> dict[str, Any]:
        seed = secrets.randbits(48) if self.seed is None else self.seed
        posterior = encoded.row(i)
        q = posterior.sample((self.samples,), generator=encoded.model.generator(seed))
        log_p = posterior.log_prob(q)[:, 0]
        return {"quaternions_xyzw": rounded(q[:, 0], 7), "log_density": rounded(log_p, 4), "seed": seed}


class LogProbRequest(Asked):
    """Log densities of rotations"""

    rotations: Rotations = Field(min_length=1, description="unit quaternions xyzw, either sign")

    def answer(self, encoded: Encoded, i: int) -> dict[str, Any]:
        posterior = encoded.row(i)
        q = as_unit_quat(self.rotations, "rotations").to(encoded.model.device)
        log_p = posterior.log_prob(q[:, None])[:, 0]
        return {"log_density": rounded(log_p, 4), "ceiling": round(posterior.ceiling, 4), "measure": "pi^2"}


class PosteriorRequest(AboutBox):
    """All that a picture needs"""

    samples: int = Field(400, ge=16)
    uniform: int = Field(200, ge=0, description="rotations from anywhere, for the background")
    rotations: Rotations = Field([], description="further rotations to tell the density of")

    def answer(self, encoded: Encoded, i: int) -> dict[str, Any]:
        """The answer with its modes, and rotations with their densities.

        The same seed gives the same random numbers for every image: when an image changes, points do not flicker.
        """
        truth = as_unit_quat(self.rotations, "rotations") if self.rotations else None
        seen, generator = self.seen(encoded, i), encoded.model.generator(self.seed)
        cloud = make_cloud(
            encoded.row(i) if seen is None else seen.rotation,
            samples=self.samples,
            modes_from=self.samples,
            uniform=self.uniform,
            truth=truth,
            symmetry=encoded.model.symmetry,
            generator=generator,
        )
        placed = {} if seen is None else seen.place(cloud.answer.quaternion, self.samples, generator)
        return cloud.to_dict() | placed


class Answered(BaseModel):
    model: str


class ModeAnswer(BaseModel):
    quaternion_xyzw: Quaternion
    share: float = Field(description="of all probability")
    radius_deg: float = Field(description="90 % of its samples lie this near")
    log_density: float | None
    kind: Literal["point", "curve", "region"]


class Certainty(BaseModel):
    """How sure an answer is; nothing without samples."""

    share_within_5_deg: float | None = None
    share_within_15_deg: float | None = None
    share_within_30_deg: float | None = None
    modes: list[ModeAnswer] | None = None
    ambiguous: bool | None = None
    verdict: str | None = Field(None, description="in words")


class FoldedAnswer(Certainty):
    order: int | None = Field(description="rotations that look the same; null for a continuous symmetry")


class HypothesisAnswer(BaseModel):
    quaternion_xyzw: Quaternion
    translation: list[float] = Field(min_length=3, max_length=3)
    score: float = Field(description="share of all probability")
    covariance: list[list[float]] = Field(description="6 x 6: x, y, z, rotation vector, along the camera's axes")
    kind: Literal["point", "curve", "region"]
    frame: Literal["opengl", "opencv"]


class PredictAnswer(Answered, Certainty):
    quaternion_xyzw: Quaternion = Field(description="object to camera, q_w >= 0")
    rotvec: list[float] = Field(description="axis times angle in radians")
    matrix: list[list[float]] | None = None
    log_density: float | None = Field(description="volume pi^2; uniform is -2.2895")
    ceiling: float | None = Field(description="the largest log density that the model can express")
    typicality: float | None = Field(None, description="p-value of being like the pictures of training")
    measure: Literal["pi^2"]
    up_to_symmetry: FoldedAnswer | None = Field(None, description="the same up to the object's symmetry")
    frame: Literal["opengl", "opencv"] | None = Field(None, description="of the camera, where a box was given")
    translation: list[float] | None = Field(None, description="where a camera was given, by models that tell poses")
    unit: str | None = Field(None, description="of the translation")
    hypotheses: list[HypothesisAnswer] | None = Field(None, description="the modes' poses, best first")


class SampleAnswer(Answered):
    quaternions_xyzw: list[Quaternion]
    log_density: list[float | None]
    seed: int


class LogProbAnswer(Answered):
    log_density: list[float | None]
    ceiling: float | None
    measure: Literal["pi^2"]


class Points(BaseModel):
    quaternions_xyzw: list[Quaternion]
    log_density: list[float | None]
    source: list[int] = Field(description="0: asked for, 1: sample, 2: uniform")
    mode: list[int] = Field(description="of a sample, its mode's number from 0; -1 for none")


class PosteriorAnswer(PredictAnswer):
    points: Points


class ModelFacts(BaseModel):
    name: str
    kind: str
    parameters: int | None
    bins: int | None
    chart: str | None
    density: str | None
    ceiling: float | None
    channels: int
    image_size: int
    object: str | None = Field(description="what it was trained on, where that is known")
    part: dict[str, Any] | None = Field(description="radius and centre, of models that tell poses")


class ModelsAnswer(BaseModel):
    models: list[ModelFacts]
    limits: dict[str, float]


class Problem(BaseModel):
    detail: str = Field(description="one sentence: what is wrong and what to try")
