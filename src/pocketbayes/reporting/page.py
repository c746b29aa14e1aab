"""One HTML file from a template, a style, a script and data, safe for untrusted data."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib import resources
from typing import Any

from pocketbayes.base.plain import finite

SCRIPTS = ("elements", "charts", "data", "overview", "calibration", "shift", "weights", "plane", "sections")
"""Scripts in the order in which they run; page.js comes last."""


def render(document: dict[str, Any], title: str) -> str:
    """Render the page; the data are in a script tag that is never executed, and only the page's script may run."""
    script = "\n".join(_read(*path) for path in [*(("scripts", f"{name}.js") for name in SCRIPTS), ("page.js",)])
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "title": html.escape(title),
        "policy": f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'",
        "style": _read("page.css"),
        "data": as_data(document),
        "script": script,
    }
    # Substitute in one pass, so that inserted text is never expanded.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _read("page.html"))


def as_data(value: Any) -> str:
    """Return JSON that cannot close its HTML tag, with null for NaN and infinity."""
    text = json.dumps(finite(value, digits=7), allow_nan=False, separators=(",", ":"), default=str)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _read(*path: str) -> str:
    return resources.files(__package__).joinpath(*path).read_text(encoding="utf-8")
