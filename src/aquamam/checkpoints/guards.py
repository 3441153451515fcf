"""What stands between a stranger's file and the memory: digests, the size of a header, the size of a model."""

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from aquamam.errors import InputError
from aquamam.files import write_text

DIGESTS = "SHA256SUMS"  # beside bundled weights, as `sha256sum` writes and checks it
MOST_BYTES, MOST_TENSORS = 16_000_000, 10_000  # of a header; the bundled models have up to 0.3 million and 118
LARGEST = 1_000_000  # number in a config: bins and sizes beyond it would take memory before any weight is looked at


def list_digests(files: Sequence[Path]) -> None:
    """Write the table of some files beside them."""
    write_text(files[0].parent / DIGESTS, "".join(f"{digest(file)}  {file.name}\n" for file in files))


def check_digest(file: Path) -> None:
    """Raise unless a bundled file is the one that was released: its SHA-256 stands in the table beside it."""
    lines = (file.parent / DIGESTS).read_text().splitlines()
    if [digest(file), file.name] not in map(str.split, lines):
        told = "it was damaged or exchanged; install the package again"
        raise InputError(f"the bundled {file.stem} must have the SHA-256 that {DIGESTS} lists, and has not: {told}.")


def digest(file: Path) -> str:
    """SHA-256 of a file's content."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def check_header(path: Path) -> None:
    """Raise where a file's header is longer or names more tensors than any model's: before it is parsed."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        tensors = file.read(length).count(b'"data_offsets"') if length <= MOST_BYTES else 0
    if length > MOST_BYTES or tensors > MOST_TENSORS:
        came = f"got {length:,} bytes" if length > MOST_BYTES else f"got {tensors:,} tensors"
        raise ValueError(f"its header may have {MOST_BYTES:,} bytes and {MOST_TENSORS:,} tensors, {came}")


@contextmanager
def no_larger_than(tensors: dict[str, Tensor], config: dict[str, Any]) -> Iterator[None]:
    """Models made inside have no more parameters than these, so that an edited config cannot fill the memory."""
    if any(isinstance(value, int) and value > LARGEST for value in config.values()):
        raise ValueError(f"numbers of a config are at most {LARGEST:,}")
    tensors_left, numbers_left = len(tensors), sum(tensor.numel() for tensor in tensors.values())
    here = threading.get_ident()

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal tensors_left, numbers_left
        if parameter is not None and threading.get_ident() == here:
            tensors_left, numbers_left = tensors_left - 1, numbers_left - parameter.numel()
            if min(tensors_left, numbers_left) < 0:
                raise ValueError("its config does not fit: it asks for more weights than there are")

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()
