"""Speed and size, measured: `python -m benchmarks` compares both sides in one run; rendering, reading and serving by
themselves."""

import aquamam  # noqa: F401  # before torch: it sets how OpenMP's threads wait
