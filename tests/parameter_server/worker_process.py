"""A worker process: pushes gradients of one for `num_steps` steps, printing the step after each pull."""

import json
import os
import sys

import numpy as np

from tests.parameter_server.processes import GRADIENTS, INITIAL, placement_on
from tests.parameter_server.server_process import RUN_ID
from trireme.parameter_server import Client, WorkerKeys


def main() -> None:
    options = json.loads(sys.argv[1])
    placement = placement_on(len(options["servers"]))
    keys = WorkerKeys.from_environ(os.environ)
    with Client(options["servers"], options["worker"], placement, run_id=RUN_ID, keys=keys) as client:
        if options["worker"] == 0:
            client.create(INITIAL)
        print(f"begins at {client.step}", flush=True)
        client.pull()
        while client.step < options["num_steps"]:
            client.push(GRADIENTS)
            weights = client.pull()
            print(f"{client.step} {np.asarray(weights['b']).item()}", flush=True)


if __name__ == "__main__":
    main()
