"""Programs that tests start."""

import subprocess
import sys


def torchrun(*words, status: int = 0) -> subprocess.CompletedProcess:
    """Two processes on this machine."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*launch, *map(str, words)], capture_output=True, text=True, check=False)
    assert bool(done.returncode) == bool(status), done.stderr
    return done
