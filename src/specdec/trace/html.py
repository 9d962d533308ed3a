"""The page: one HTML file that needs nothing else, neither network nor server."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from importlib import resources
from typing import Any

__all__ = ["page"]

# Parts of one function, in this order.
_SCRIPTS = ("base.js", "decode.js", "tree.js", "particles.js", "explore.js", "page.js")


def page(trace: Mapping[str, Any], explorers: Mapping[str, Any], title: str) -> str:
    """HTML that shows a trace of `record` and the numbers of `explorers`.

    Data stands in the page as JSON of ASCII letters in which nothing can end the element; scripts put it into the
    page as text only. A content security policy lets the page run its own script and load nothing.
    """
    script, style = _script(), _asset("shell.css")
    policy = "; ".join([
        "default-src 'none'",
        f"script-src '{_hash(script)}'",
        f"style-src '{_hash(style)}'",
        "base-uri 'none'",
        "form-action 'none'",
    ])  # fmt: skip
    filled = {
        "POLICY": escape(policy, quote=True),
        "TITLE": escape(title, quote=True),
        "STYLE": style,
        "SCRIPT": script,
        "TRACE": _json(trace),
        "EXPLORERS": _json(explorers),
    }
    # Split, not replaced one after another: what is filled in may hold the name of another place.
    parts = _asset("shell.html").split("%%")
    return "".join(filled[part] if at % 2 else part for at, part in enumerate(parts))


def _script() -> str:
    return '"use strict";\n(() => {\n' + "\n".join(map(_asset, _SCRIPTS)) + "})();\n"


def _json(data: Mapping[str, Any]) -> str:
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return (resources.files("specdec.trace") / "assets" / name).read_text(encoding="utf-8")
