"""The report's page and plots: whole in themselves, escaped, repeatable, and right for every kind of outcome."""

import base64
import functools
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from onnxmill.tasks.findings import finding
from onnxmill.tasks.parity import OutputParity, Parity
from onnxmill.tasks.plots import plots
from onnxmill.tasks.report import Report, VariantRow
from onnxmill.tasks.report_html import html
from onnxmill.tasks.report_rows import next_step

REPORTS = Path(__file__).with_name("reports")
NAMES = ("promoted", "refused", "failed")
VOID = {"meta", "img", "br", "col"}


class Page(HTMLParser):
    """Reads a page: its texts and its tags, and whether each tag is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.pictures: list[dict[str, str]] = []
        self.addresses: list[str] = []
        words: list[str] = []
        self.words = words
        self.feed(text)
        self.close()
        self.text = " ".join(" ".join(words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        given = {key: value or "" for key, value in attrs}
        if tag == "img":
            self.pictures.append(given)
        self.addresses += [given[key] for key in ("src", "href", "action", "srcset") if key in given]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)


def kept(name: str) -> Report:
    return Report.model_validate_json((REPORTS / f"{name}.json").read_text(encoding="utf-8"))


@functools.cache
def page_of(name: str) -> str:
    return html(kept(name))


def with_variant(variant: VariantRow) -> Report:
    return kept("refused").model_copy(update={"variants": (variant,)})


@pytest.mark.parametrize("name", NAMES)
def test_page_holds_what_a_person_needs(name: str) -> None:
    report = kept(name)
    page = Page(page_of(name))
    assert page.open == []
    for text in (report.sentence, next_step(report).command, *report.versions.values(), report.digests.source):
        assert text in page.text
    for variant in report.variants:
        assert variant.name in page.text
        assert variant.status in page.text
        assert all(f.code in page.text and f.where in page.text for f in variant.findings)
        assert variant.artifact is None or variant.artifact.digest in page.text


@pytest.mark.parametrize("name", NAMES)
def test_page_needs_nothing_from_outside(name: str) -> None:
    text = page_of(name)
    page = Page(text)
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    assert page.addresses
    assert all(address.startswith("data:image/svg+xml;base64,") for address in page.addresses)
    assert "http" not in text
    assert "url(" not in text
    assert "@import" not in text


def test_page_is_the_same_in_another_process() -> None:
    script = (
        "import sys; from onnxmill.tasks.report import Report; from onnxmill.tasks.report_html import html\n"
        "sys.stdout.buffer.write(html(Report.model_validate_json(sys.stdin.buffer.read())).encode())"
    )
    report = kept("promoted")
    given = report.model_dump_json().encode()
    done = subprocess.run([sys.executable, "-c", script], input=given, capture_output=True, check=True, timeout=60)
    assert done.stdout.decode() == page_of("promoted")


def test_what_texts_hold_is_escaped() -> None:
    evil = '<script>alert("x")</script>'
    found = finding("RUN001", evil, f"`{evil}`", fix=f"one ` and {evil}")
    parity = Parity(
        cases=1, outputs=(OutputParity.model_validate(dict.fromkeys(OutputParity.model_fields) | {"name": evil}),)
    )
    variant = VariantRow(name=evil, recipe="fp32", status="failed", findings=(found,), parity=parity)
    report = with_variant(variant).model_copy(
        update={"name": evil, "sentence": evil, "machine": {evil: evil}, "spec": evil}
    )
    page = Page(html(report))
    assert "script" not in page.tags
    assert page.text.count(evil) >= 8


@pytest.mark.parametrize("status", ["passed", "refused", "failed", "skipped"])
def test_a_variant_without_any_number_is_shown_as_nothing(status: str) -> None:
    report = with_variant(VariantRow.model_validate({"name": "bare", "recipe": "fp32", "status": status}))
    page = Page(html(report))
    assert f"bare {status} – – – – – – – –" in page.text
    assert page.pictures == []
    assert "None" not in page.text
    assert "Measurements" not in page.text


def test_measurements_that_are_not_plain_are_marked() -> None:
    assert "cpu unstable 0.391" in Page(page_of("promoted")).text


def test_code_in_a_finding_is_marked_up() -> None:
    assert "(<code>exclude:</code>)" in page_of("refused")


# --- plots


@pytest.mark.parametrize("name", NAMES)
def test_plots_are_pictures_with_a_description(name: str) -> None:
    report = kept(name)
    pictures = Page(page_of(name)).pictures
    drawn = plots(report)
    assert [p["alt"] for p in pictures] == [p.text for p in drawn]
    for picture, plot in zip(pictures, drawn, strict=True):
        svg = base64.b64decode(picture["src"].split(",", 1)[1]).decode()
        assert svg == plot.svg
        assert ElementTree.fromstring(svg).tag.endswith("}svg")
        assert "<dc:date>" not in svg
        assert not re.search(r'href="(?!#)', svg)


def test_plots_say_the_numbers() -> None:
    latency, size, sqnr = (plot.text for plot in plots(kept("promoted")))
    assert latency == "p50: fp32 0.412 ms, fp16 0.551 ms, int8-dynamic 0.391 ms, int8-static 0.217 ms"
    assert "int8-static 442 kB" in size
    assert "int8-entropy 14.2 dB" in sqnr


def test_exact_and_lost_outputs_are_named() -> None:
    assert [plot.text for plot in plots(kept("failed"))][2] == "fp32 exact"
    assert [plot.text for plot in plots(kept("refused"))][1] == "int8-static not finite"


@pytest.mark.parametrize(("slowest_ms", "logarithmic"), [(15.0, False), (1000.0, True)])
def test_latency_axis_is_logarithmic_only_when_the_fastest_would_vanish(slowest_ms: float, logarithmic: bool) -> None:
    report = kept("promoted")
    pair = []
    for variant, latency in zip(report.variants[:2], (1.0, slowest_ms), strict=True):
        times = dict.fromkeys(("p50_ms", "p95_ms", "p99_ms"), latency)
        pair.append(variant.model_copy(update={"results": (variant.results[0].model_copy(update=times),)}))
    svg = plots(report.model_copy(update={"variants": tuple(pair)}))[0].svg
    axis = svg[svg.index('id="matplotlib.axis_1"') : svg.index('id="matplotlib.axis_2"')]
    ticks = re.findall(r"<!-- (\S+) -->", axis)  # matplotlib writes each text before its outlines
    assert (ticks == ["1", "10", "100", "1000"]) == logarithmic
    assert (ticks[0] == "0") != logarithmic
