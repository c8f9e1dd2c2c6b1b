"""A worker whose answers are known: `run K` takes K seconds, by its own account.

python fake_worker.py RATE [die]     every unit takes RATE seconds; `die` dies when asked
"""

import json
import sys

rate = float(sys.argv[1])
print(json.dumps({"ready": True, "n_params": 7}), flush=True)
for line in sys.stdin:
    if "die" in sys.argv:
        sys.exit("these are the last words")
    command, n = line.split()
    node = {"error": f"no command {command}"}
    if command == "run":
        seconds = rate * int(n)
        node = {"wall": 2 * seconds, "cpu": seconds, "loss": 1.0, "peak_bytes": 2**20}
    print(json.dumps(node), flush=True)
