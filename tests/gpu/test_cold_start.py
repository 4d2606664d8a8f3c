"""A run in an empty cache finds what the compiler made for it elsewhere."""

import json
import os
import subprocess
import sys

PROGRAM = """
import json, sys, time
import ressl
from torch._dynamo.utils import counters
from ressl.engine import scouts

sent, back = [], scouts.back
scouts.back = lambda: sent.append([scout.wait() for scout in scouts._out]) or back()
start = time.monotonic()
run = ressl.pretrain("demo", out=sys.argv[1], device="cuda", engine="graph", epochs=1, knn_every=0)
found = {"sent": sent, "seconds": time.monotonic() - start, "engine": run.facts["engine"]}
print(json.dumps(found | {"missed": counters["inductor"]["fxgraph_cache_miss"]}))
"""


def test_the_first_run_compiles_next_to_nothing_itself(tmp_path):
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        env.pop(name, None)
    found = []
    for name in ("cold", "warm"):
        words = [sys.executable, "-c", PROGRAM, str(tmp_path / name)]
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        found.append(json.loads(done.stdout.splitlines()[-1]))
    cold, warm = found
    print(f"cold {cold}, warm {warm}")
    assert [run["engine"] for run in found] == ["graph", "graph"]
    assert cold["sent"] == [[0, 0]]  # both did what they were asked
    assert warm["sent"] == [[]]
    assert cold["missed"] <= 2
    assert warm["missed"] == 0
