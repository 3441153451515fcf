"""The service under load: python -m benchmarks.serving MODEL [--clients 64] [--seconds 60] [--bad 10000].

Starts `aquamam serve` on this computer, then measures
  live   posteriors a second of a die that is turned, as the page asks for them (target: 5)
load   many clients at once: no wrong answer, no failure but 429 and 503 by the stated limits, memory that does not grow
bad    generated bad requests: all refused with 4xx and prints a table, then one JSON line a figure.
"""

import argparse
import asyncio
import base64
import io
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from aquamam.geometry.rotations import random_quat
from aquamam.rendering.known import KnownObject
from aquamam.rendering.render import RenderSettings
from aquamam.rendering.solids import solid
from benchmarks.bad_requests import bad_requests
from benchmarks.measure import machine

MOVING = {"samples": "200", "uniform": "100"}  # what web/serve.js asks for while the object turns


@contextmanager
def service(model: str, *options: str) -> Iterator[tuple[str, int]]:
    """A running service: its address and its process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "aquamam", "serve", model, "--port", "0", "--quiet", *options],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        if found is None:
            raise SystemExit("the service did not start")
        yield found[0], process.pid
    finally:
        process.terminate()
        process.wait(30)


def pictures(count: int, size: int) -> list[bytes]:
    die = KnownObject(name="die", mesh=solid("die").mesh, settings=RenderSettings())
    blobs = []
    for q in random_quat((count,)).numpy():
        buffer = io.BytesIO()
        Image.fromarray(die.picture(q, size)).save(buffer, format="PNG")
        blobs.append(buffer.getvalue())
    return blobs


def resident(process: int) -> float:
    """Memory of a process in MB, NaN where there is no /proc."""
    try:
        lines = Path(f"/proc/{process}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", lines)[1]) / 1024  # type: ignore[index]
    except (OSError, TypeError):
        return float("nan")


def cpu_seconds(process: int) -> float:
    """CPU time that a process has used, NaN where there is no /proc: a shared machine stretches the clock, not this."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return float("nan")


async def live(address: str, process: int, size: int, seconds: float) -> dict[str, Any]:
    """One request after the other, each for the next pose."""
    blobs = itertools.cycle(pictures(32, size))
    times: list[float] = []
    async with httpx.AsyncClient(base_url=address, timeout=30) as client:
        before = cpu_seconds(process)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            begun = time.monotonic()
            form = {**MOVING, "rotations": "[[0,0,0,1]]"}
            response = await client.post("/v1/posterior", files={"image": next(blobs)}, data=form)
            assert response.status_code == 200, response.text
            times.append(time.monotonic() - begun)
    rate = round(1 / statistics.median(times), 2)
    cpu = round(1e3 * (cpu_seconds(process) - before) / len(times), 1)
    return {"name": "live", "posteriors_per_second": rate, "target": 5.0, "cpu_ms_per_posterior": cpu}


async def load(address: str, process: int, size: int, clients: int, seconds: float, samples: int) -> dict[str, Any]:
    """Clients that ask one request after the other; every answer is compared with the one that the image got when it
    was alone."""
    bodies = [request_bytes(blob, samples) for blob in pictures(16, size)]
    seen: Counter[int] = Counter()
    times: list[float] = []
    memory: list[float] = []
    wrong = 0
    async with httpx.AsyncClient(base_url=address, timeout=60) as client:
        line = await connect(address)
        alone = [json.loads((await exchange(*line, body))[2]) for body in bodies]
        before = batches_of((await client.get("/metrics")).text)
        end = time.monotonic() + seconds

        async def ask(number: int) -> None:
            nonlocal wrong
            random_ = np.random.default_rng(number)
            line = await connect(address)
            while time.monotonic() < end:
                which = int(random_.integers(len(bodies)))
                begun = time.monotonic()
                status, headers, body = await exchange(*line, bodies[which])
                seen[status] += 1
                if status == 200:
                    times.append(time.monotonic() - begun)
                    wrong += not same(json.loads(body), alone[which])
                elif status in (429, 503):
                    await asyncio.sleep(float(headers.get("retry-after", 1)))
            line[1].close()

        async def watch() -> None:
            while time.monotonic() < end:
                memory.append(resident(process))
                await asyncio.sleep(seconds / 20)

        await asyncio.gather(watch(), *(ask(i) for i in range(clients)))
        after = batches_of((await client.get("/metrics")).text)
    third = max(1, len(memory) // 3)
    growth = statistics.median(memory[-third:]) - statistics.median(memory[third : 2 * third] or memory)
    failed = sum(n for status, n in seen.items() if status not in (200, 429, 503))
    return {
        "name": f"load, {clients} clients, {samples} samples",
        "seconds": seconds,
        "answers_per_second": round(seen[200] / seconds, 1),
        "median_ms": round(1e3 * statistics.median(times), 1),
        "p99_ms": round(1e3 * float(np.quantile(times, 0.99)), 1),
        "statuses": {str(k): v for k, v in sorted(seen.items())},
        "wrong": wrong,
        "failed": failed,
        "images_per_batch": round((after[0] - before[0]) / (after[1] - before[1]), 2),
        "memory_mb": round(memory[-1], 1),
        "memory_growth_mb": round(growth, 1),
    }


def request_bytes(image: bytes, samples: int) -> bytes:
    """A whole request for /v1/predict."""
    body = json.dumps({"image": base64.b64encode(image).decode(), "samples": samples}).encode()
    head = "POST /v1/predict HTTP/1.1\r\nHost: service\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.removeprefix("http://").partition(":")
    return await asyncio.open_connection(host, int(port))


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[int, dict[str, str], bytes]:
    """One request on an open connection. A client library takes longer than the service does, and this machine runs
    both."""
    writer.write(request)
    await writer.drain()
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(first.split()[1]), headers, await reader.readexactly(int(headers["content-length"]))


def batches_of(metrics: str) -> tuple[float, float]:
    """Images and batches that went through the network so far."""
    images, batches = (re.search(rf"aquamam_batch_images_{part} (\S+)", metrics) for part in ("sum", "count"))
    assert images is not None
    assert batches is not None
    return float(images[1]), float(batches[1])


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Equal to rounding."""
    near = abs(np.dot(one["quaternion_xyzw"], other["quaternion_xyzw"])) > 1 - 1e-6
    return bool(near and abs(one["log_density"] - other["log_density"]) < 2e-3)


async def bad(address: str, count: int, size: int) -> dict[str, Any]:
    """Bad requests, eight at a time; a good one after every hundred."""
    (good,) = pictures(1, size)
    seen: Counter[int] = Counter()
    wrong = 0
    async with httpx.AsyncClient(base_url=address, timeout=30) as client:
        requests = itertools.islice(enumerate(bad_requests(seed=2)), count)

        async def send() -> None:
            nonlocal wrong
            for i, request in requests:
                answer = await client.request(
                    request.method, request.path, headers=request.headers, content=request.body
                )
                seen[answer.status_code] += 1
                wrong += request.certain and answer.status_code < 400
                if i % 100 == 0:
                    answer = await client.post("/v1/predict", files={"image": good}, data={"samples": "0"})
                    wrong += answer.status_code != 200

        await asyncio.gather(*(send() for _ in range(8)))
    failed = sum(n for status, n in seen.items() if status >= 500)
    return {
        "name": f"bad, {count} requests",
        "statuses": {str(k): v for k, v in sorted(seen.items())},
        "failed": failed,
        "wrong": wrong,
    }


async def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    figures = []
    threads = ["--threads", str(args.threads)] if args.threads else []
    with service(args.model, *threads) as (address, process):
        size = httpx.get(address + "/v1/models").json()["models"][0]["image_size"]
        figures.append(await live(address, process, size, min(10.0, args.seconds)))
        for samples in (0, 200):
            figures.append(await load(address, process, size, args.clients, args.seconds / 2, samples))
        if args.bad:
            figures.append(await bad(address, args.bad, size))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="die")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--bad", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=int(os.environ.get("OMP_NUM_THREADS", "0")))
    figures = asyncio.run(run(parser.parse_args()))
    for figure in figures:
        print("; ".join(f"{key} {value}" for key, value in figure.items()))
    for figure in figures:
        print(json.dumps(figure | machine()))
    if any(figure.get("wrong") or figure.get("failed") for figure in figures):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
