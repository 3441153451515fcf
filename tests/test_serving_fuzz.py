"""Whatever comes in, the service answers it, and goes on."""

import collections
import itertools

import pytest
from services import InProcess

from benchmarks.bad_requests import bad_requests

COUNT = 1000  # benchmarks/serving.py sends ten times as many, through a socket


@pytest.mark.filterwarnings("ignore")  # Pillow warns of much that it finds in damaged images
def test_bad_requests_are_refused_and_the_next_good_one_is_answered():
    with InProcess() as service:
        want = service.ask("/v1/predict", samples=20)
        seen: collections.Counter = collections.Counter()

        async def send() -> None:
            for bad in itertools.islice(bad_requests(seed=1), COUNT):
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
