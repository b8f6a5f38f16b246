"""Lists what is hard to read in guides, README, messages and docstrings of public names:  python docs/words.py

Sentences beyond 30 words, guides beyond 900, and words of our own dialect: a list to work from, which fails nothing.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONGEST, WHOLE = 30, 900
DIALECT = (
    r"\bdoubts?\b",
    r"\bremarks?\b",
    r"\bnewcomers?\b",
    r"\btold\b",
    r"\botherwise than\b",
    r"\bas \w+ as it is where\b",
    r"\bof its own accord\b",
    r"\bin the place of\b",
    r"\bwhere (?:it|that|there) is so\b",
    r"\bwhat is (?:said|told|made) of (?:it|them)\b",
)


def sentences(text: str) -> Iterator[str]:
    """The sentences of Markdown: no code, no tables, no headings, a link as its words."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    text = re.sub(r"^(?:\|.*|#.*|!\[.*|<!--.*)$", "", text, flags=re.M)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for paragraph in re.split(r"\n\s*\n|\n(?=[*-] )", text):
        yield from (s for s in re.split(r"(?<=[.!?])(?:\*\*)?\s+", " ".join(paragraph.split())) if s)


def literal(node: ast.expr) -> str:
    """The text of a string, with an x for each value in it; empty if it is none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) if isinstance(part, ast.Constant) else "x" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return literal(node.left) + literal(node.right)
    return ""


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """The strings in a module's code of six words or more, by line: what it raises, warns of, notes and prints."""
    tree = ast.parse(path.read_text("utf-8"))
    parts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        text = literal(node) if isinstance(node, ast.expr) and id(node) not in parts else ""
        if text:
            parts |= set(map(id, ast.walk(node)))
        if len(text.split()) >= 6 and not re.match(r"\s*[A-Z]{6}", text):
            yield from ((node.lineno, line) for line in text.split("\n"))


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings of a module and its public names, by line: each argument, and each paragraph that is no table."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and not getattr(node, "name", "").startswith(
            "_"
        ):
            text = re.sub(r"^ *>>>(?:.+\n?)*", "", ast.get_docstring(node) or "", flags=re.M)
            parts = re.split(r"\n\s*\n|\n(?= *(?:\w[\w, ]*: |\* |\[dim\]))", text)
            table = r"\S {3,}|^ " if isinstance(node, ast.Module) else r"\S {3,}"
            yield from ((getattr(node, "lineno", 1), part) for part in parts if not re.search(table, part))


def complaints(text: str) -> Iterator[str]:
    """Its long sentences and its words of our dialect."""
    for sentence in sentences(text):
        cites = '"' in sentence and re.search(r"\b(?:19|20)\d\d\b|et al", sentence)
        if (count := len(re.sub(r"`[^`]*`", "code", sentence).split())) > LONGEST and not cites:
            yield f"{count} words: {sentence[:90]}..."
        yield from (f"“{m[0]}”: ...{sentence[max(m.start() - 30, 0) : m.end() + 30]}..."
                    for word in DIALECT for m in re.finditer(word, sentence, re.I))  # fmt: skip


def main() -> None:
    """Print the list."""
    for page in [ROOT / "README.md", ROOT / "docs" / "index.md", *sorted(ROOT.glob("docs/guides/*.md"))]:
        text, name = page.read_text("utf-8"), page.relative_to(ROOT)
        if page.parent.name == "guides" and (count := len(text.split())) > WHOLE:
            print(f"{name}: {count} words, at most {WHOLE}")
        for complaint in complaints(text):
            print(f"{name}: {complaint}")
    for path in sorted((ROOT / "unskew").rglob("*.py")):
        for line, text in sorted({*messages(path), *docstrings(path)}):
            for complaint in complaints(text):
                print(f"{path.relative_to(ROOT)}:{line}: {complaint}")


if __name__ == "__main__":
    main()
