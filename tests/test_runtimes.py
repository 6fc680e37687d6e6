"""What the releases of a runtime read: the table, and the installed one beside it."""

import itertools

import onnx
import onnxruntime
import pytest

from onnxmill.tasks import runtimes
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.runtimes import Reads
from tests import graphs

IR_BEHIND = {(19, 8), (23, 11)}
"""Rows that read an opset whose own IR they do not: then the IR is what limits."""
RELU = "agraph (float[2] x) => (float[2] y) { y = Relu(x) }"


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ("onnxruntime==1.13", Reads(17, 8)),
        ("onnxruntime==1.20", Reads(21, 10)),
        ("onnxruntime==1.20.1", Reads(21, 10)),
        ("onnxruntime==1.22.0", Reads(22, 10)),
        ("onnxruntime==1.23", Reads(23, 11)),
        ("onnxruntime==1.27", Reads(23, 11)),  # between two rows: what the older one reads
        ("onnxruntime==1.32.0", Reads(28, 14)),
        ("onnxruntime==2.0", Reads(28, 14)),
    ],
)
def test_what_a_release_reads(requirement: str, expected: Reads) -> None:
    assert runtimes.reads(requirement) == expected


@pytest.mark.parametrize(
    "requirement",
    ["onnxruntime", "onnxruntime>=1.20", "onnxruntime==1", "onnxruntime==1.x", "", "onnxruntim==1.20", "tensorrt==10.0",
     "onnxruntime==1.20; rm", "onnxruntime==1.20.", " onnxruntime==1.20"],
)  # fmt: skip
def test_what_is_no_requirement_is_told_with_an_example(requirement: str) -> None:
    with pytest.raises(InputError, match=r"^max_runtime: .* such as onnxruntime==1\.20; runtimes: onnxruntime$"):
        runtimes.reads(requirement)


def test_a_release_older_than_the_table_is_told() -> None:
    with pytest.raises(InputError, match=r"max_runtime: 'onnxruntime==1\.12': is older than .* begins at 1\.13"):
        runtimes.reads("onnxruntime==1.12")


def test_a_newer_release_never_reads_less() -> None:
    for table in runtimes.RUNTIMES.values():
        rows = [table[version] for version in sorted(table)]
        for older, newer in itertools.pairwise(rows):
            assert (older.opset, older.ir_version) <= (newer.opset, newer.ir_version)
            assert older.ir_version <= newer.ir_version


def test_the_rows_opset_needs_no_more_than_the_rows_ir() -> None:
    for row in (row for table in runtimes.RUNTIMES.values() for row in table.values()):
        if row.opset <= 23:  # the pins that are offered
            needed = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", row.opset)])
            assert needed <= row.ir_version or (row.opset, row.ir_version) in IR_BEHIND


def test_the_installed_runtime_reads_what_its_row_says() -> None:
    limits = runtimes.reads(f"onnxruntime=={onnxruntime.__version__}")
    for opset, ir in ((limits.opset, 8), (18, limits.ir_version)):
        onnxruntime.InferenceSession(graphs.parse(RELU, opset=opset, ir=ir).SerializeToString())
    newest = max(runtimes.RUNTIMES["onnxruntime"])
    if f"{newest[0]}.{newest[1]}" == ".".join(onnxruntime.__version__.split(".")[:2]):
        for opset, ir in ((limits.opset + 1, 8), (18, limits.ir_version + 1)):
            with pytest.raises(Exception, match=r"opset|IR version"):
                onnxruntime.InferenceSession(graphs.parse(RELU, opset=opset, ir=ir).SerializeToString())
