"""Keeps the table of values in docs/kubernetes.md equal to the comments in values.yaml; with --write, makes it so."""

import sys

from chart import CHART, ROOT

BEGIN, END = "<!-- values -->\n", "<!-- /values -->\n"


def entries(lines):
    """(path, default, comment) of every value that has a comment, in order."""
    path, comment, found = [], [], []
    for line in lines:
        text = line.strip()
        depth = (len(line) - len(line.lstrip())) // 2
        if not text:
            comment = []
        elif text.startswith("#"):
            comment.append(text.lstrip("# "))
        elif ":" in text and not text.startswith("- ") and depth <= len(path):
            key, _, default = text.partition(":")
            path = [*path[:depth], key]
            if comment:
                found.append((".".join(path), default.strip(), " ".join(comment)))
            comment = []
    return found


def table():
    """The table, in Markdown."""
    rows = ["| value | default | what it is |\n", "|---|---|---|\n"]
    for path, default, comment in entries((CHART / "values.yaml").read_text().splitlines()):
        if path in ("image",):
            continue
        # A map or list that goes on in the next lines is shown in the file itself.
        shown = f"`{default}`" if default else ""
        rows.append(f"| `{path}` | {shown} | {comment.replace('|', chr(92) + '|')} |\n")
    return "".join(rows)


def main():
    page = ROOT / "docs" / "kubernetes.md"
    text = page.read_text()
    before, rest = text.split(BEGIN)
    old, after = rest.split(END)
    if old == table():
        return 0
    if "--write" in sys.argv:
        page.write_text(before + BEGIN + table() + END + after)
        return 0
    print("docs/kubernetes.md: its table of values is not that of values.yaml; run testbed/helm/values_table.py --write")
    return 1


if __name__ == "__main__":
    sys.exit(main())
