"""Numbers as people read them: in one place, so that terminal, page and registry show a figure the same way."""

MINUS = "−"  # U+2212, as wide as a plus, so that columns of signed numbers line up
NOTHING = "–"
"""Stands for "there is no such number"."""


def milliseconds(value_ms: float | None) -> str:
    """Three significant digits, without the unit (a heading carries it): 0.0412, 1.24, 318, 12,400."""
    return NOTHING if value_ms is None else _digits(value_ms)


def seconds(value_s: float) -> str:
    """0.04 s, 3.1 s, 2 min 5 s."""
    if value_s >= 60:
        minutes, rest = divmod(round(value_s), 60)
        return f"{minutes} min {rest} s"
    return f"{value_s:.1f} s" if value_s >= 1 else f"{value_s:.2f} s"


def size(value_bytes: int) -> str:
    """Decimal units, as file managers and registries use them: 512 B, 45.2 kB, 102 MB, 2.10 GB."""
    value = float(value_bytes)
    for unit in ("B", "kB", "MB"):
        if value < 999.5:
            return f"{value_bytes} B" if unit == "B" else f"{_digits(value)} {unit}"
        value /= 1000
    return f"{_digits(value)} GB"


def times(ratio: float, interval: tuple[float, float] | None = None) -> str:
    """A speed-up and its interval: 1.9× [1.8, 2.0]. Below 1.5 with two decimals: there a hundredth matters."""
    decimals = 2 if ratio < 1.5 else 1 if ratio < 100 else 0
    text = f"{ratio:.{decimals}f}×"
    return text if interval is None else f"{text} [{interval[0]:.{decimals}f}, {interval[1]:.{decimals}f}]"


def points(change: float) -> str:
    """A change of a share (0 to 1) in percentage points: −0.1 pt, +1.25 pt, ±0 pt."""
    return f"{signed(100 * change)} pt"


def signed(value: float) -> str:
    """Two decimals at most, always with a sign, and a real minus: +0.5, −0.03, ±0."""
    text = f"{abs(value):.2f}".rstrip("0").rstrip(".")
    return f"±{text}" if text == "0" else f"{'+' if value > 0 else MINUS}{text}"


def number(value: float | None) -> str:
    """Four significant digits and a real minus; `–` for null."""
    return NOTHING if value is None else f"{value:.4g}".replace("-", MINUS)


def _digits(value: float) -> str:
    """Three significant digits, never in powers of ten: 0.0412, 1.24, 31.8, 318, 12,400."""
    if value >= 99.95:
        return f"{value:,.0f}"
    decimals = 1 if value >= 9.995 else 2 if value >= 0.9995 else 3 if value >= 0.09995 else 4
    return f"{value:.{decimals}f}"
