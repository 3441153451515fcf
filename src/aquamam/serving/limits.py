"""What a request may ask for, and how a refusal is told."""

from dataclasses import dataclass, fields

from starlette.exceptions import HTTPException

from aquamam.config import require_positive


@dataclass(frozen=True, kw_only=True)
class Limits:
    """One request must not take the machine from the others."""

    upload_bytes: int = 10_000_000  # of a whole request; more is 413
    pixels: int = 16_777_216  # of an image, 4096 x 4096; more is 413, told from the header before anything is decoded
    rotations: int = 10_000  # drawn or asked about in one request; more is 422
    samples: int = 2_000  # behind shares and modes, whose cost grows with the square; more is 422
    seconds: float | int = 10.0  # from the last byte of a request to its answer; longer is 503
    queue: int = 64  # requests that are worked on or wait; one more is 429
    batch: int = 16  # images that go through the network together

    def __post_init__(self) -> None:
        require_positive(self, *(field.name for field in fields(self)))


class Refusal(HTTPException):
    """A request that is not answered, in one sentence; `retry` is in seconds, where trying again can help."""

    def __init__(self, status: int, sentence: str, *, retry: int | None = None):
        super().__init__(status, sentence, headers={} if retry is None else {"retry-after": str(retry)})
