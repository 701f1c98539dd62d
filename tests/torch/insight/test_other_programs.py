"""Records in the hands of others: TensorBoard's files and parquet."""

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from qcore.insight import Record, Site, send, statistics_of


@pytest.fixture
def record():
    found = Record("digits")
    for step, largest in enumerate((300, 500, 7000)):
        found.add(step, Site("features.0", "output"), statistics_of(np.float32([1, 1.3, 0, largest]), "e4m3fn"))
    return found


def test_tensorboard_reads_what_is_sent(record, tmp_path):
    with SummaryWriter(tmp_path) as writer:
        send(record, writer)
    read = EventAccumulator(str(tmp_path), {"histograms": 0}).Reload()  # 0: all of them
    site = str(record.entries[0].site)
    events = read.Scalars(f"{site}/overflowed")
    assert [(event.step, event.value) for event in events] == [(0, 0.0), (1, 0.25), (2, 0.25)]
    assert [event.step for event in read.Histograms(f"{site}/exponents")] == [0, 1, 2]


def test_parquet_keeps_rows(record, tmp_path):
    rows, path = record.rows(), tmp_path / "run.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    read = pyarrow.parquet.read_table(path).to_pylist()
    assert repr(read) == repr(rows)  # NaN too
