"""Writes the pages of docs/ that are made from the code; with `--check`, only says which are out of date (exit 1)."""

import sys
from pathlib import Path
from typing import Any

import typer

from onnxmill.flows.cli import app
from onnxmill.tasks.findings import CODES
from onnxmill.tasks.spec import Spec

DOCS = Path(__file__).resolve().parent
MADE = "<!-- made by `python docs/generate.py`: change the code, not this page -->\n"
SEVERITIES = {
    "refuse": "the variant, or the run, does not pass",
    "warn": "it passes, and a person should look",
    "info": "on record",
}


def findings_page() -> str:
    """Every code of `CODES`: what it means and what to do."""
    lines = [
        MADE,
        "# Findings\n",
        "Each refusal and each warning is a finding: a code, where, a message with the numbers, and the way out. They",
        "stand in `report.json`, `report.html`, the terminal and MLflow.\n",
        *(f"- **{severity}**: {meaning}" for severity, meaning in SEVERITIES.items()),
        "",
        "| code | severity | what it means | what to do |",
        "|---|---|---|---|",
        *(f"| {code} | {row.severity} | {_cell(row.title)} | {_cell(row.fix)} |" for code, row in CODES.items()),
    ]
    return "\n".join(lines) + "\n"


def spec_page() -> str:
    """Every key of a spec: type, default, meaning, read from the pydantic models."""
    lines = [
        MADE,
        "# The spec\n",
        "One file describes one model. An unknown key is an error that names the closest known one.",
    ]
    root = Spec.model_json_schema()
    lines += _section("Keys", root, root["$defs"])
    seen = ["Spec"]
    for name in _references(root, root["$defs"]):
        if name not in seen:
            seen.append(name)
            lines += _section(name, root["$defs"][name], root["$defs"])
    return "\n".join(lines) + "\n"


def _section(title: str, model: dict[str, Any], models: dict[str, Any]) -> list[str]:
    """A table of one model's keys, under its docstring."""
    required = model.get("required", [])
    lines = ["", f"## {title}\n", f"{model.get('description', '')}\n"]
    lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key, field in model["properties"].items():
        default = "required" if key in required else _default(field)
        meaning = field.get("description") or _borrowed(field, models)
        lines.append(f"| `{key}` | {_cell(_type(field))} | {_cell(default)} | {_cell(meaning)} |")
    return lines


def _type(field: dict[str, Any]) -> str:
    """A JSON schema's type in words: `fp32 | fp16`, list of Variant, mapping of name to Tensor."""
    if "$ref" in field:
        name = field["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return " | ".join(f"`{choice}`" for choice in field["enum"])
    if "anyOf" in field:
        return " or ".join(_type(choice) for choice in field["anyOf"] if choice.get("type") != "null")
    if field.get("type") == "array":
        inner = field.get("items") or {"anyOf": field.get("prefixItems", [])[:1]}
        return f"list of {_type(inner)}"
    if field.get("type") == "object":
        return f"name → {_type(field['additionalProperties'])}"
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = [f"{sign} {field[bound]:,}" for bound, sign in bounds.items() if bound in field]
    return " ".join([field.get("type", "any"), ", ".join(limits)]).strip()


def _default(field: dict[str, Any]) -> str:
    value = field.get("default")
    if value is None or value in ("", [], {}):
        return ""
    if isinstance(value, dict):
        return "its keys' defaults"
    if isinstance(value, list):
        return ", ".join(f"`{entry}`" for entry in value)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _borrowed(field: dict[str, Any], models: dict[str, Any]) -> str:
    """The first line of the docstring of the model that a key holds."""
    for name in _references(field, {}):
        return str(models[name].get("description", "")).split("\n")[0]
    return ""


def _references(schema: object, models: dict[str, Any]) -> list[str]:
    """Names of the models that a schema refers to, in order, and of those that these refer to (from `models`)."""
    found: list[str] = []
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key == "$ref":
                name = value.rsplit("/", 1)[1]
                found += [name, *_references(models.get(name), models)]
            elif key != "$defs":
                found += _references(value, models)
    elif isinstance(schema, list):
        for value in schema:
            found += _references(value, models)
    return found


def _cell(text: str) -> str:
    """Text that fits a table's cell: one line, no bar that would end it, no bracket that would start a tag."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def cli_page() -> str:
    """Every command with its arguments and options, read from the command line itself."""
    root = typer.main.get_command(app)
    lines = [MADE, "# The command line\n", _paragraphs(app.info.help)]
    for name, command in sorted(vars(root)["commands"].items()):
        lines += ["", f"## onnxmill {name}\n", _paragraphs(command.help), ""]
        lines += ["| | default | meaning |", "|---|---|---|"]
        for parameter in command.params:
            if parameter.name == "help":
                continue
            names = ", ".join(parameter.opts) if parameter.opts[0].startswith("-") else parameter.opts[0].upper()
            default = "" if parameter.default in (None, False) else f"`{parameter.default}`"
            required = "required" if parameter.required else default
            lines.append(f"| `{names}` | {required} | {_cell(getattr(parameter, 'help', None) or '')} |")
    return "\n".join(lines) + "\n"


def _paragraphs(text: str | None) -> str:
    """Help text with one line a paragraph."""
    return "\n\n".join(" ".join(part.split()) for part in (text or "").split("\n\n"))


PAGES = {"cli.md": cli_page, "findings.md": findings_page, "spec.md": spec_page}


def outdated(folder: Path) -> list[str]:
    """Names of the pages in `folder` that differ from what the code gives, or are not there."""
    return [
        name
        for name, page in PAGES.items()
        if not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != page()
    ]


def main(arguments: list[str]) -> str | None:
    """What is wrong, for `sys.exit`; None when the pages are as the code has them."""
    if arguments == ["--check"]:
        stale = outdated(DOCS)
        return f"out of date: {', '.join(stale)}; run `python docs/generate.py`" if stale else None
    if arguments:
        return f"unknown arguments {arguments}; the only one is --check"
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
