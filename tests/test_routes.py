"""The table of docs/routes.md: framework, route and opset, on the models of tests/models. None is wrong, and no fewer
cells are proven than the page says.

`python -m tests.test_routes --update [NAME ...]` computes them anew and writes the page.
"""

import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from onnxmill.tasks import isolate
from onnxmill.tasks.isolate import Limits
from onnxmill.tasks.spec import OPSET_MAX, OPSET_MIN
from tests.models import fetch
from tests.routes import Cell

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "routes.md"
HEAD = """\
<!-- Made by `python -m tests.test_routes --update`; a test keeps it. -->
# Routes and opsets

Every route of every framework at every opset that can be pinned, on {models} models: networks that packages carry and
small ones. A cell counts the models that are **proven**: exported, pinned, and within 1e-4 of the output's range of the
framework's own outputs, at two sizes of every dynamic dim, on inputs that were not traced. The rest is refused, by the
findings beside the count. `auto` takes the first route that is proven.

**Proven: {proven} of {total} cells. Refused: {refused}. Wrong: {wrong}.**
"""


def compute(names: Iterable[str]) -> list[Cell]:
    """The cells of each model, in a process of its own: frameworks do not share one well. Two at a time."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        return [cell for cells in pool.map(lambda name: _of(name, Path(folder)), names) for cell in cells]


def _of(name: str, work: Path) -> list[Cell]:
    place = fetch.CACHE / name
    reply = isolate.run(
        "tests.routes:cells",
        {"folder": place, "work": work / name},
        step=f"routes of {name}",
        limits=Limits(timeout_s=1200),
        cwd=place,
        log=work / f"{name}.log",
        environment={"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"},
    )
    cells = TypeAdapter(list[Cell]).validate_python(reply.value)
    print(f"{name}: {dict(Counter(cell.outcome for cell in cells))}", file=sys.stderr, flush=True)
    return cells


def page(cells: list[Cell]) -> str:
    counts = Counter(cell.outcome for cell in cells)
    models = {cell.model: cell.framework for cell in cells}
    opsets = range(OPSET_MIN, OPSET_MAX + 1)
    lines = [
        HEAD.format(
            models=len(models),
            total=len(cells),
            proven=counts["proven"],
            refused=counts["refused"],
            wrong=counts["wrong"],
        ),
        "| framework | route | " + " | ".join(map(str, opsets)) + " |",
        "|---|---|" + "---|" * len(opsets),
    ]
    for framework, route in dict.fromkeys((cell.framework, cell.route) for cell in cells):
        row = [cell for cell in cells if (cell.framework, cell.route) == (framework, route)]
        lines.append(f"| {framework} | {route} | " + " | ".join(_text(row, opset) for opset in opsets) + " |")
    lines += ["", "| model | framework | proven | refused |", "|---|---|---|---|"]
    for model, framework in models.items():
        own = [cell for cell in cells if cell.model == model]
        codes = Counter(f"{cell.code} {cell.route}" for cell in own if cell.outcome == "refused")
        refusals = ", ".join(f"{count} × {code}" for code, count in sorted(codes.items()))
        lines.append(f"| {model} | {framework} | {sum(c.outcome == 'proven' for c in own)} | {refusals} |")
    return "\n".join(lines) + "\n"


def _text(row: list[Cell], opset: int) -> str:
    own = [cell for cell in row if cell.opset == opset]
    codes = sorted({cell.code for cell in own if cell.code})
    return f"{sum(cell.outcome == 'proven' for cell in own)}/{len(own)}" + "".join(f" {code}" for code in codes)


@pytest.mark.full
def test_no_cell_is_wrong_and_no_fewer_are_proven_than_published() -> None:
    names = fetch.names()
    fetch.fetch(names)
    cells = compute(names)
    assert [cell for cell in cells if cell.outcome == "wrong"] == []
    published = re.search(r"Proven: (\d+) of (\d+)", PAGE.read_text(encoding="utf-8"))
    assert published
    proven = sum(cell.outcome == "proven" for cell in cells)
    lost = f"{proven} of {len(cells)} cells are proven, the page says {published[0]}"
    assert len(cells) == int(published[2]), lost
    assert proven >= int(published[1]), f"{lost}: {page(cells)}"


def test_a_wrong_cell_is_seen_in_the_page() -> None:
    row = {"model": "m", "framework": "torch", "route": "dynamo"}
    cells = [Cell(**row, opset=18, outcome="wrong"), Cell(**row, opset=19, outcome="refused", code="OPS001")]
    text = page([*cells, Cell(**row, opset=20, outcome="proven")])
    assert "Proven: 1 of 3 cells. Refused: 1. Wrong: 1." in text
    assert "| torch | dynamo | 0/0 | 0/0 | 0/0 | 0/0 | 0/0 | 0/1 | 0/1 OPS001 | 1/1 |" in text


def main(arguments: list[str]) -> None:
    update, names = "--update" in arguments, [a for a in arguments if not a.startswith("--")] or fetch.names()
    fetch.fetch(names)
    cells = compute(names)
    for cell in cells:
        if cell.outcome != "proven":
            print(json.dumps(cell.model_dump(), ensure_ascii=False))
    if update:
        PAGE.write_text(page(cells), encoding="utf-8")
    else:
        print(page(cells))


if __name__ == "__main__":
    main(sys.argv[1:])
