"""The service: its answers are the package's, alone or in a batch; its limits hold; it ends well."""

import argparse
import asyncio
import collections
import io
import itertools
import json
import re
import threading
import time
from pathlib import Path

import pytest
import torch
from attacks.makers import png
from PIL import Image
from scenes import CAMERA, pose_model
from services import PNG, SIZE, InProcess, base64_of, encoded, picture, tiny_model

from aquamam.baselines.classification import Classification, ClassificationConfig
from aquamam.cli.predict import predict as command_predict
from aquamam.network.model import RotationModel
from aquamam.network.poses import look
from aquamam.serving import app, schemas
from aquamam.serving.batcher import Batcher, Encoded, Job
from aquamam.serving.gate import Limits, Refusal
from benchmarks.bad_requests import bad_requests

NOTHING = torch.zeros(3, SIZE, SIZE, dtype=torch.uint8)
IMAGE = {"image": base64_of(PNG)}


@pytest.fixture(scope="module")
def service():
    with InProcess({"tiny": tiny_model(), "other": tiny_model(1)}) as service:
        yield service


def held_up(service: InProcess) -> threading.Event:
    """The network's thread is busy until the event is set."""
    release, begun = threading.Event(), threading.Event()

    def work(encoded: Encoded, i: int) -> None:
        begun.set()
        release.wait(20)

    service.service.batcher.submit(Job(model=tiny_model(), image=NOTHING, work=work))
    assert begun.wait(10)
    return release


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [0, 200])
def test_predict_says_what_the_command_says(service, samples):
    options = argparse.Namespace(samples=samples, strategy="greedy", seed=3, matrix=True, frame="opengl")
    (want,) = command_predict(tiny_model(), [(Path("a.png"), picture())], options)
    assert want.pop("image") == "a.png"
    got = service.ask("/v1/predict", samples=samples, seed=3, matrix=True)
    assert got == {"model": "tiny", **want}


def test_a_box_and_a_camera_give_the_pose_that_the_command_gives():
    model, image, box = pose_model(), picture(2, (120, 160)), (60, 30, 40, 50)
    generator = torch.Generator().manual_seed(3)
    seen = look(model, image, box, CAMERA, "opencv")
    want = json.loads(json.dumps(seen.to_dict(200, symmetry=model.symmetry, generator=generator)))
    with InProcess({"die": model}) as service:
        fields = {"samples": 200, "seed": 3, "frame": "opencv"}
        got = service.ask("/v1/predict", encoded(image), box=list(box), camera=[200, 200, 79.5, 59.5], **fields)
        assert got == {"model": "die", **want}
        form = {name: str(value) for name, value in fields.items()} | {
            "box": "60,30,40,50",
            "camera": "200,200,79.5,59.5",
        }
        assert service.post("/v1/predict", files={"image": ("a.png", encoded(image))}, data=form).json() == got
        schemas.PredictAnswer.model_validate(got)
        assert "translation" not in service.ask("/v1/predict", encoded(image), box=list(box))


def test_forms_and_json_are_the_same_request(service):
    want = service.ask("/v1/log_prob", model="other", rotations=[[0, 0, 0, 1], [0.5, -0.5, 0.5, 0.5]])
    form = {"model": "other", "rotations": "[[0, 0, 0, 1], [0.5, -0.5, 0.5, 0.5]]"}
    response = service.post("/v1/log_prob", files={"image": ("a.png", PNG)}, data=form)
    assert response.json() == want
    uri = {"image": "data:image/png;base64," + base64_of(PNG), "model": "other", "rotations": [[0, 0, 0, 1]]}
    assert service.post("/v1/log_prob", json=uri).json()["log_density"] == want["log_density"][:1]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM"])
def test_pictures_of_every_kind_and_size_are_read_as_the_package_reads_them(service, kind):
    blob = encoded(picture(1, (20, 31)), kind)
    with torch.no_grad():
        want = tiny_model()(Image.open(io.BytesIO(blob))).log_prob(torch.tensor([[0.0, 0.0, 0.0, 1.0]]))
    got = service.ask("/v1/log_prob", blob, rotations=[[0, 0, 0, -1]])  # either sign
    assert got["log_density"] == pytest.approx(want.tolist(), abs=1e-3)


def test_draws_follow_their_seed_and_carry_their_densities(service):
    first, again, other = (service.ask("/v1/sample", samples=50, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first["quaternions_xyzw"] != other["quaternions_xyzw"]
    told = service.ask("/v1/log_prob", rotations=first["quaternions_xyzw"])
    close = [abs(a - b) < 1e-3 for a, b in zip(told["log_density"], first["log_density"])]
    assert sum(close) >= 49  # rounded to seven digits, one may fall to the other side of an edge
    unseeded = [service.ask("/v1/sample", samples=3) for _ in range(2)]
    assert unseeded[0]["seed"] != unseeded[1]["seed"]
    assert service.ask("/v1/sample", samples=3, seed=unseeded[0]["seed"]) == unseeded[0]


def test_the_posterior_for_pictures_agrees_with_the_other_answers(service):
    truth = [0.5, 0.5, -0.5, 0.5]
    got = service.ask("/v1/posterior", samples=300, uniform=40, rotations=[truth], seed=5)
    points = got["points"]
    assert points["source"] == [0] + 300 * [1] + 40 * [2]
    told = service.ask("/v1/log_prob", rotations=points["quaternions_xyzw"])["log_density"]
    assert sum(abs(a - b) < 2e-3 for a, b in zip(told, points["log_density"])) >= 338
    predicted = service.ask("/v1/predict", samples=300, seed=5)
    assert flat({**got, "points": 0}) == pytest.approx(flat({**predicted, "points": 0}), abs=3e-4)
    assert max(points["mode"]) == len(got["modes"]) - 1


@pytest.mark.parametrize("change", [{}, {"chart": "hemisphere", "density": "paper"}])
def test_answers_do_not_depend_on_the_company(change):
    with InProcess({"a": tiny_model(**change), "b": tiny_model(2, **change)}, batch=8) as service:
        requests = []
        for i in range(16):
            image = base64_of(encoded(picture(i)))
            some = {"rotations": [[0, 0, 0, 1], [0.6, 0, 0.8, 0]][: 1 + i % 2]}
            kinds = [("predict", {"samples": 0}), ("predict", {"samples": 60, "seed": i})]
            kinds += [("sample", {"samples": 20 + i, "seed": i}), ("log_prob", some)]
            path, fields = kinds[i % 4]
            requests.append((f"/v1/{path}", {"image": image, "model": "ab"[i // 8], **fields}))
        assert agree_alone_and_together(service, requests) <= 1 + 16 / 3  # 16 jobs and the one that held them up


def agree_alone_and_together(service: InProcess, requests: list) -> float:
    """Ask one by one, then all at once; returns the number of batches of the latter."""
    alone = [service.post(path, json=body).json() for path, body in requests]
    before = service.metric("aquamam_batch_images_count")
    threading.Timer(0.5, held_up(service).set).start()
    together = [response.json() for response in service.together(requests)]
    for one, other in zip(alone, together):
        assert flat(one) == pytest.approx(flat(other), abs=3e-4)
    return service.metric("aquamam_batch_images_count") - before


def flat(value) -> dict:
    """Nested JSON as one level, numbers by their path."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {f"{key}.{rest}": x for key, part in items for rest, x in flat(part).items()}
    return {"": value}


def test_the_other_systems_are_served_too():
    torch.manual_seed(0)
    small = {"dim": 16, "heads": 2, "layers": 1, "hidden": 16, "image_size": SIZE, "stem": (4,), "stem_blocks": (0,)}
    with InProcess({"grid": Classification(ClassificationConfig(level=0, **small)).eval()}) as service:
        bodies = [{"image": base64_of(encoded(picture(i))), "samples": 40, "seed": 1} for i in range(3)]
        agree_alone_and_together(service, [("/v1/predict", body) for body in bodies])
        assert service.get("/v1/models").json()["models"][0]["kind"] == "classification"


def test_a_request_never_waits_for_company():
    """Nobody waits for a request with another one in hand; those that are there already go along."""
    sizes, release, model = [], threading.Event(), tiny_model()
    batcher = Batcher(most=8, seen=sizes.append)
    works = [lambda e, i: release.wait(10), *[lambda e, i: "answered"] * 4]
    first, *others = (Job(model=model, image=NOTHING, work=work) for work in works)
    batcher.submit(first)
    while not sizes:
        time.sleep(0.001)
    for job in others[:3]:
        batcher.submit(job)
    release.set()
    assert [job.answer.result(10) for job in (first, *others[:3])] == [True, *["answered"] * 3]
    assert batcher.submit(others[3]).result(10) == "answered"
    assert sizes == [1, 3, 1]
    batcher.close()


def test_what_fails_for_one_does_not_fail_for_the_others():
    batcher = Batcher(most=8)
    release, model, done = threading.Event(), tiny_model(), []

    def fine(encoded: Encoded, i: int) -> list[float]:
        done.append(i)
        return encoded.plain[i].quaternion

    def broken(encoded: Encoded, i: int) -> None:
        raise RuntimeError("broken")

    batcher.submit(Job(model=model, image=NOTHING, work=lambda e, i: release.wait(10)))
    jobs = [Job(model=model, image=NOTHING, work=broken if i == 1 else fine) for i in range(4)]
    for job in jobs:
        batcher.submit(job)
    assert jobs[3].answer.cancel()  # nobody waits for it any more: it is not even looked at
    release.set()
    assert len(jobs[0].answer.result(10)) == len(jobs[2].answer.result(10)) == 4
    with pytest.raises(RuntimeError, match="broken"):
        jobs[1].answer.result(10)
    batcher.close()
    assert len(done) == 2
    with pytest.raises(Refusal, match="shutting down"):
        batcher.submit(Job(model=model, image=NOTHING, work=fine))


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "words", "path", "fields"),
    [
        (413, "pixels", "predict", {"image": base64_of(png(5000, 5000))}),
        (415, "known kind", "predict", {"image": base64_of(b"%!PS-Adobe-3.0 EPSF-3.0\n")}),
        (422, "decoded", "predict", {"image": base64_of(PNG[: len(PNG) // 2])}),
        (422, "base64", "predict", {"image": "?"}),
        (422, "image", "predict", {}),
        (422, "samples", "predict", {**IMAGE, "samples": 2001}),
        (422, "more than 5 samples", "predict", {**IMAGE, "samples": 3}),
        (422, "samples", "sample", {**IMAGE, "samples": 10_001}),
        (422, "samples", "sample", {**IMAGE, "samples": 10**400}),
        (422, "rotations", "log_prob", {**IMAGE, "rotations": [[0, 0, 0, 1]] * 10_001}),
        (422, "rotations", "log_prob", {**IMAGE, "rotations": [[0, 0, 0, float("nan")]]}),
        (422, "unit norm", "log_prob", {**IMAGE, "rotations": [[0, 0, 0, 0]]}),
        (422, "rotations", "log_prob", {**IMAGE, "rotations": [[0, 0, 1]]}),
        (422, "positive area", "predict", {**IMAGE, "box": [1, 2, 0, 4]}),
        (422, "must meet its image", "predict", {**IMAGE, "box": "100,200,30,40"}),
        (422, "box", "predict", {**IMAGE, "box": "a,b"}),
        (422, "positive focal", "predict", {**IMAGE, "box": [1, 2, 3, 4], "camera": [0, 5, 8, 8]}),
        (422, "180 degrees", "predict", {**IMAGE, "box": [1, 2, 3, 4], "camera": [1e-9, 1e-9, 3, 3]}),
        (422, "camera: needs a box", "predict", {**IMAGE, "camera": [5, 5, 8, 8]}),
        (422, "frame", "predict", {**IMAGE, "box": [1, 2, 3, 4], "frame": "ros"}),
        (422, "strategy", "predict", {**IMAGE, "strategy": "luck"}),
        (422, "sampels", "predict", {**IMAGE, "sampels": 7}),
        (404, "tiny", "predict", {**IMAGE, "model": "../../etc/passwd"}),
    ],
)
def test_each_limit_has_its_status_and_one_sentence(service, status, words, path, fields):
    body = {"content": json.dumps(fields), "headers": {"content-type": "application/json"}}
    response = service.post(f"/v1/{path}", **body)
    assert response.status_code == status, response.text
    detail = response.json()["detail"]
    assert words in detail
    assert "\n" not in detail
    assert len(detail) < 400


def test_uploads_end_at_the_limit():
    with InProcess(upload_bytes=5000) as service:
        large = service.post("/v1/predict", content=b"x" * 5001)
        assert large.status_code == 413

        async def endless():
            while True:
                yield b"x" * 1000

        assert service.post("/v1/predict", content=endless()).status_code == 413  # its length is not told beforehand
        assert service.post("/v1/predict", content=PNG, headers={"content-type": "image/png"}).status_code == 415
        service.ask("/v1/predict")


def test_slow_uploads_slow_answers_and_full_queues_are_refused():
    with InProcess(seconds=1.5, queue=4) as service:

        async def dripping():
            while True:
                yield b"x"
                await asyncio.sleep(0.1)

        assert service.post("/v1/predict", content=dripping()).status_code == 408
        release = held_up(service)
        responses = service.together([("/v1/predict", IMAGE)] * 6)
        assert sorted(r.status_code for r in responses) == [429, 429, 503, 503, 503, 503]
        assert all(int(r.headers["retry-after"]) >= 1 for r in responses)
        assert service.get("/healthz").status_code == 200  # the page and the counters stay reachable
        service.service.busy += 4
        assert (service.get("/readyz").status_code, service.get("/readyz").json()["status"]) == (503, "full")
        service.service.busy -= 4
        release.set()
        service.service.limits = Limits(seconds=60)  # however busy the machine is that runs this test
        service.ask("/v1/predict")
        assert service.metric("aquamam_requests_total", route="/v1/predict", status="429") == 2
        assert service.metric("aquamam_busy_requests") == 0


def test_an_image_that_takes_too_long_to_decode_is_refused_in_time(monkeypatch):
    release, decoded = threading.Event(), []
    monkeypatch.setattr(app, "read_image", lambda *_, **__: decoded.append(release.wait(10)))
    with InProcess(seconds=0.5) as service:
        response = service.post("/v1/predict", json=IMAGE)
        assert not decoded
        release.set()
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")


def test_with_a_token_only_those_who_show_it_are_answered():
    with InProcess(token="secret") as service:
        for path in ("/", "/healthz", "/readyz", "/assets/serve.js"):
            assert service.get(path).status_code == 200
        for path in ("/v1/models", "/metrics", "/objects/tiny", "/openapi.json"):
            assert service.get(path).status_code == 401
        for shown in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "secret"},
            {"authorization": "Bearer é"},
        ):
            response = service.post("/v1/predict", json=IMAGE, headers={k: v.encode() for k, v in shown.items()})
            assert response.status_code == 401
            assert "Bearer TOKEN" in response.json()["detail"]
            assert response.headers["www-authenticate"] == "Bearer"
        right = {"authorization": "Bearer secret"}
        assert service.post("/v1/predict", json=IMAGE, headers=right).status_code == 200
        service.service.close()
        assert service.get("/readyz").json()["status"] == "closing"


def test_a_fault_of_the_service_is_a_500_without_a_stack_trace(caplog):
    class Broken(RotationModel):
        kind, config = "broken", tiny_model().config

        def posterior(self, images):
            raise RuntimeError("secret of the service")

    with InProcess({"broken": Broken(), "tiny": tiny_model()}) as service:
        response = service.post("/v1/predict", json=IMAGE)
        assert response.status_code == 500
        assert "secret" not in response.text
        assert response.headers["x-request-id"] in response.json()["detail"]
        assert "secret of the service" in caplog.text  # the log has it
        service.ask("/v1/predict", model="tiny")


@pytest.mark.filterwarnings("ignore")  # Pillow warns of much that it finds in damaged images
def test_bad_requests_are_refused_and_the_next_good_one_is_answered():
    with InProcess() as service:
        want = service.ask("/v1/predict", samples=20)
        seen: collections.Counter = collections.Counter()

        async def send() -> None:
            for bad in itertools.islice(bad_requests(seed=1), 1000):  # benchmarks/serving.py sends ten times as many
                response = await service.client.request(bad.method, bad.path, headers=bad.headers, content=bad.body)
                assert response.status_code < 500, (bad, response.text)
                assert not bad.certain or response.status_code >= 400, bad
                if response.status_code >= 400:
                    detail = response.json()["detail"]
                    assert isinstance(detail, str)
                    assert len(detail) < 1000
                    assert "Traceback" not in detail
                seen[response.status_code] += 1

        service.run(send())
        assert {404, 405, 413, 415, 422} <= set(seen)
        assert service.ask("/v1/predict", samples=20) == want
        assert service.service.busy == 0


# --- around it --------------------------------------------------------------------------------------------------------


def test_the_description_matches_the_answers(service):
    told = service.get("/openapi.json").json()
    for path, (_, answered) in app.ROUTES.items():
        operation = told["paths"][path]["post"]
        assert {"application/json", "multipart/form-data"} == set(operation["requestBody"]["content"])
        assert {"200", "404", "408", "413", "415", "422", "429", "503"} == set(operation["responses"])
        fields = {"rotations": [[0, 0, 0, 1]]} if path == "/v1/log_prob" else {}
        values = service.ask(path, **fields)
        answered.model_validate(values, strict=False)
        assert set(values) <= set(answered.model_fields)
    models = schemas.ModelsAnswer.model_validate(service.get("/v1/models").json())
    assert [(m.name, m.object, m.image_size) for m in models.models] == [("tiny", "die", SIZE), ("other", "die", SIZE)]
    assert service.get("/docs").status_code == 404  # FastAPI's own would load scripts from elsewhere


def test_metrics_count_requests_and_rotations_by_route(service):
    before = service.metric("aquamam_rotations_total", route="/v1/predict")
    service.ask("/v1/predict", samples=20)
    service.get("/made/up/by/someone")
    assert service.metric("aquamam_rotations_total", route="/v1/predict") == before + 20
    assert service.metric("aquamam_requests_total", route="other", method="GET", status="404") >= 1
    assert "made" not in service.get("/metrics").text  # anyone could fill the memory with labels


def test_the_page_brings_its_own_scripts_and_no_others(service):
    page = service.get("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for path in re.findall(r'(?:src|href)="(/[^"]*)"', page.text):
        assert service.get(path).status_code == 200
    assert not re.search(r'(?:src|href)="(?!/|data:)', page.text)
    assert service.get("/assets/posterior.js").status_code == 404
    assert service.get("/assets/..%2f..%2fmodel.py").status_code == 404
    assert service.get("/objects/tiny").json()["name"] == "die"
    assert service.get("/objects/nothing").status_code == 404


def test_names_of_models_cannot_break_the_page():
    name = "</script><script>alert(1)</script>"
    with InProcess({name: tiny_model()}) as service:
        assert name not in service.get("/").text
        assert service.get("/").text.count("<script") == 7
        service.ask("/v1/predict", model=name)
