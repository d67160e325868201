"""Boosted trees on handwritten digits, grown by all members of an XGBoostJob together."""

import hashlib
import os
import socket

import xgboost
from sklearn.datasets import load_digits
from xgboost import collective
from xgboost.tracker import RabitTracker

from allaboard.inside import report, result

ROUNDS = 20
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
# The tracker and its clients want a number, and the operator gives the name of the master's Service.
master, port = socket.gethostbyname(os.environ["MASTER_ADDR"]), int(os.environ["MASTER_PORT"])

tracker = None
if rank == 0:
    tracker = RabitTracker(host_ip=master, n_workers=size, port=port, sortby="task")
    tracker.start()

with collective.CommunicatorContext(
    dmlc_tracker_uri=master, dmlc_tracker_port=port, dmlc_task_id=f"{rank:05d}", dmlc_retry=100
):
    images, digits = load_digits(return_X_y=True)
    own = xgboost.DMatrix(images[rank::size], digits[rank::size])
    model = xgboost.Booster(
        {"objective": "multi:softmax", "num_class": 10, "max_depth": 4, "nthread": 1}, [own]
    )
    for step in range(ROUNDS):
        model.update(own, step)
        report(step + 1, total=ROUNDS)
    accuracy = float((model.predict(xgboost.DMatrix(images)) == digits).mean())
    print("model", hashlib.sha256(model.save_raw()).hexdigest()[:16], flush=True)
    result(accuracy=round(accuracy, 4))

if tracker is not None:
    tracker.wait_for()
