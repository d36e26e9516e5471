"""Count lines of code: no blank lines, no comments, no docstrings.

python scripts/count_lines.py [FOLDER ...]      # src unless given
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_lines(text: str) -> int:
    """Lines that hold code; a string that stands alone as a statement is a docstring."""
    documentation = {
        number
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if isinstance(node.value.value, str)
    }
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - documentation)


def main() -> None:
    total = 0
    for folder in map(Path, sys.argv[1:] or ["src"]):
        for room in sorted(path for path in folder.iterdir() if path.name != "__pycache__"):
            files = [room] if room.suffix == ".py" else sorted(room.rglob("*.py"))
            lines = sum(code_lines(file.read_text(encoding="utf-8")) for file in files)
            total += lines
            if lines:
                print(f"{lines:6,}  {room}")
    print(f"{total:6,}  in all")


if __name__ == "__main__":
    main()
