"""The command: a real process on a real socket, from its first line to its end."""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from services import PNG, encoded, listening, picture, tiny_model

from aquamam.checkpoints.checkpoint import save_model
from aquamam.cli.serve import OPTIONS, add_arguments, name_of
from aquamam.serving.app import create_app
from aquamam.serving.gate import Limits


def test_the_service_answers_many_at_once_and_ends_well(tmp_path):
    save_model(tiny_model(), tmp_path / "cube" / "best.safetensors")
    command = [sys.executable, "-m", "aquamam", "serve", str(tmp_path / "cube" / "best.safetensors")]
    command += ["--port", "0", "--threads", "1", "--max-seconds", "60"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = re.fullmatch(r"aquamam serves cube on (http://127\.0\.0\.1:\d+)\n", line)
        assert address, line
        answers: dict[int, set[str]] = {i: set() for i in range(4)}

        def client(i: int) -> None:
            with httpx.Client(base_url=address[1], timeout=60) as http:
                for _ in range(5):
                    blob = encoded(picture(i))
                    response = http.post("/v1/predict", files={"image": blob}, data={"samples": "16"})
                    assert response.status_code == 200
                    answers[i].add(response.text)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(client, range(4)))
        assert [len(texts) for texts in answers.values()] == [1, 1, 1, 1]  # the same image, the same answer
        assert len(set.union(*answers.values())) == 4

        late: list[int] = []

        def ask_late() -> None:
            body = {"files": {"image": PNG}, "data": {"samples": "2000"}}
            late.append(httpx.post(address[1] + "/v1/predict", timeout=60, **body).status_code)

        thread = threading.Thread(target=ask_late)
        thread.start()
        while "aquamam_busy_requests 1.0\n" not in httpx.get(address[1] + "/metrics").text and thread.is_alive():
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        thread.join()
        assert late == [200]  # what was being worked on is answered
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0
        lines = [json.loads(text) for text in errors.splitlines()]
        requests = [told for told in lines if told["event"] == "request" and told["path"] == "/v1/predict"]
        assert len(requests) == 21
        fields = {"time", "id", "status", "ms", "batch", "wait_ms", "model", "bytes_in"}
        assert all(fields <= told.keys() for told in requests)
    finally:
        process.kill()
        process.communicate()


def test_a_port_that_is_taken_is_told_before_models_are_read(refuses):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "cannot listen" in refuses("serve", "no-such-model", "--port", taken.getsockname()[1])


def test_models_get_short_names():
    names = {"runs/die/best.safetensors": "die", "runs/die": "die", "robots/cup.onnx": "cup", "die": "die"}
    assert {path: name_of(path) for path in names} == names


def test_the_documentation_is_true(tmp_path):
    """The Python of docs/serving.md runs, and its tables name the options, defaults and routes that there are."""
    text = (Path(__file__).parents[1] / "docs" / "serving.md").read_text()
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert set(OPTIONS) <= set(parser.format_help().split())
    for option, (field, _) in OPTIONS.items():
        assert f"`{option}`" in text
        if field != "batch":
            row = next(line for line in text.splitlines() if f"`{option}`" in line and line.startswith("|"))
            assert f"{getattr(Limits(), field):,.0f}" in row
    for path in create_app({"tiny": tiny_model()}).openapi()["paths"]:
        assert f" {path}`" in text
    (tmp_path / "die.png").write_bytes(PNG)
    names: dict = {}
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    exec(block, names)
    threads = set(threading.enumerate())
    with listening({"tiny": tiny_model()}) as address:
        answer = names["predict"](tmp_path / "die.png", address)
    told = "quaternion_xyzw rotvec log_density ceiling share_within_5_deg modes ambiguous verdict"
    assert set(told.split()) <= set(answer)
    new = set(threading.enumerate()) - threads
    assert not any(
        thread.name.startswith("aquamam-network") for thread in new
    )  # the end of the service is that of its thread
