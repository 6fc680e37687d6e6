"""What every HTML page of ours is rendered with: texts are escaped, an unknown name is an error."""

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from onnxmill.tasks import units


def environment() -> Environment:
    """Templates that lie in this folder, with the filters that all pages use."""
    made = Environment(
        loader=PackageLoader("onnxmill.tasks", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(number=units.number, ticks=ticks)
    return made


def ticks(text: str) -> Markup:
    """Escaped text, with what stands between backticks as code."""
    parts = [escape(part) for part in text.split("`")]
    if len(parts) % 2 == 0:  # a backtick without its partner: show the text as it is
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(part) if i % 2 else part for i, part in enumerate(parts))
