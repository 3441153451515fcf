"""What requests and answers hold; the service's OpenAPI description is made from these.

The image itself stands beside these fields: as a file in a form, or as base64 in JSON.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

Seed = Annotated[int, Field(ge=0, lt=2**63)]
Quaternion = Annotated[list[FiniteFloat], Field(min_length=4, max_length=4)]


class Asked(BaseModel):
    """A request; a field that is not known is an error, since it may be one that was mistyped."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(max_length=200, description="one of /v1/models; the first one if not given")] = ""


class PredictRequest(Asked):
    samples: Annotated[int, Field(ge=0, description="drawn for shares and modes; 0 gives the rotation alone")] = 500
    strategy: Literal["greedy", "beam", "expected"] = "greedy"
    matrix: Annotated[bool, Field(description="also give the rotation as a matrix")] = False
    seed: Annotated[Seed, Field(description="of the samples")] = 0


class SampleRequest(Asked):
    samples: Annotated[int, Field(ge=1)] = 100
    seed: Annotated[Seed | None, Field(description="of the samples; a new one if not given")] = None


class LogProbRequest(Asked):
    rotations: Annotated[list[Quaternion], Field(min_length=1, description="unit quaternions xyzw, either sign")]


class PosteriorRequest(Asked):
    samples: Annotated[int, Field(ge=16)] = 400
    uniform: Annotated[int, Field(ge=0, description="rotations from anywhere, for the background")] = 200
    rotations: Annotated[list[Quaternion], Field(description="further rotations to tell the density of")] = []
    seed: Seed = 0


class Answered(BaseModel):
    model: str


class ModeAnswer(BaseModel):
    quaternion_xyzw: Quaternion
    share: Annotated[float, Field(description="of all probability")]
    radius_deg: Annotated[float, Field(description="90 % of its samples lie this near")]
    log_density: float | None
    kind: Literal["point", "curve", "region"]


class FoldedAnswer(BaseModel):
    order: Annotated[int | None, Field(description="rotations that look the same; null for a continuous symmetry")]
    share_within_5_deg: float
    share_within_15_deg: float
    share_within_30_deg: float
    modes: list[ModeAnswer]
    ambiguous: bool
    verdict: str


class PredictAnswer(Answered):
    quaternion_xyzw: Annotated[Quaternion, Field(description="object to camera, q_w >= 0")]
    rotvec: Annotated[list[float], Field(description="axis times angle in radians")]
    matrix: list[list[float]] | None = None
    log_density: Annotated[float | None, Field(description="volume pi^2; uniform is -2.2895")]
    ceiling: Annotated[float | None, Field(description="the largest log density that the model can express")]
    measure: Literal["pi^2"]
    share_within_5_deg: float | None = None
    share_within_15_deg: float | None = None
    share_within_30_deg: float | None = None
    modes: list[ModeAnswer] | None = None
    ambiguous: bool | None = None
    verdict: Annotated[str | None, Field(description="how sure the answer is, in words")] = None
    up_to_symmetry: Annotated[FoldedAnswer | None, Field(description="the same with all that looks alike as one")] = (
        None
    )


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
    source: Annotated[list[int], Field(description="0: asked for, 1: sample, 2: uniform")]
    mode: Annotated[list[int], Field(description="of a sample, its mode's number from 0; -1 for none")]


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
    object: Annotated[
        str | None, Field(description="what it was trained on, where that is one of the package's solids")
    ]


class ModelsAnswer(BaseModel):
    models: list[ModelFacts]
    limits: dict[str, float]


class Problem(BaseModel):
    detail: Annotated[str, Field(description="one sentence: what is wrong and what to try")]
