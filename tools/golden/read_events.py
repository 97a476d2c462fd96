"""Opens a run directory with TensorBoard's own reader and compares it with progress.csv.

    pip install tensorboard==2.21.0 'setuptools<81'
    python tools/golden/read_events.py RUN_DIRECTORY

Every cell of progress.csv whose column is a tag of the events must be the
scalar at that step (column training_iteration), rounded to float32. Prints what
TensorBoard saw; exits with 1 where they differ or nothing was compared.
"""

import csv
import math
import struct
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def main(run):
    events = EventAccumulator(run, size_guidance={"scalars": 0}).Reload()
    tags = events.Tags()["scalars"]
    seen = {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in tags}
    for tag in tags:
        print(f"{tag}: {len(seen[tag])} scalars, steps {min(seen[tag])} to {max(seen[tag])}")
    with open(f"{run}/progress.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    compared, wrong = 0, 0
    for row in rows:
        step = int(row["training_iteration"])
        for tag in tags:
            if not row.get(tag):
                continue
            want, got = float32(float(row[tag])), seen[tag].get(step)
            compared += 1
            if got != want and not (got is not None and math.isnan(got) and math.isnan(want)):
                wrong += 1
                print(f"step {step}, {tag}: progress.csv has {want}, TensorBoard {got}")
    print(f"{compared} values compared, {wrong} differ")
    return 1 if wrong or not compared else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
