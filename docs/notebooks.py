"""Runs the notebooks of examples/ and shows them as pages:  python docs/notebooks.py

A cell's last expression is shown as Jupyter shows it: by its own HTML, a chart as a still, anything else by its repr.
"""

import ast
import html
import json
import pprint
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import altair as alt

from unskew.report.charts import still

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def cells(path: Path, names: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Each cell in order, run where it is code: its kind, its text, and what its last expression is.

    Args:
        path: The notebook, which may name files from the folder above its own.
        names: What the cells define.
    """
    with chdir(path.parents[1]):
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            text, value = "".join(cell["source"]), None
            if cell["cell_type"] == "code":
                code = ast.parse(text)
                last = code.body.pop() if isinstance(code.body[-1], ast.Expr) else None
                exec(compile(code, path.name, "exec"), names)
                if isinstance(last, ast.Expr):
                    value = eval(compile(ast.Expression(last.value), path.name, "eval"), names)
            yield cell["cell_type"], text, value


def page(path: Path) -> str:
    """The notebook in Markdown, with what its cells show."""
    parts = []
    for kind, text, value in cells(path, {}):
        parts.append(text if kind == "markdown" else f"```python\n{text}\n```")
        parts += [] if value is None else [_shown(value)]
    return "\n\n".join(parts) + "\n"


def _shown(value: Any) -> str:
    if isinstance(value, alt.TopLevelMixin):
        inner = still(value).decode()
    elif hasattr(value, "_repr_html_"):
        inner = value._repr_html_()
    else:
        inner = f"<pre>{html.escape(pprint.pformat(value))}</pre>"
    return f'<div class="output">{inner}</div>'


if __name__ == "__main__":
    for notebook in NOTEBOOKS:
        print(page(notebook))
