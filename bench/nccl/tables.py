"""What all programs here print and write."""
import json
import pathlib


def size_text(size):
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power and size % (1 << power) == 0:
            return f"{size >> power} {unit}"
    return f"{size} B"


def time_text(microseconds):
    for many, unit in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= many:
            return f"{microseconds / many:g} {unit}"
    return f"{microseconds:g} us"


def several(count, noun):
    return f"{count} {noun}" + ("" if count == 1 else "s")


def markdown(head, rows):
    """A table whose columns are as wide as their widest cell: the first to the left, numbers to the right."""
    cells = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]

    def line(row):
        padded = [cell.rjust(width) if column else cell.ljust(width)
                  for column, (cell, width) in enumerate(zip(row, widths))]
        return "| " + " | ".join(padded) + " |"

    rule = "|" + "|".join("-" * (width + 1) + (":" if column else "-") for column, width in enumerate(widths)) + "|"
    return "\n".join([line(cells[0]), rule, *map(line, cells[1:])])


def write_json(path, value):
    pathlib.Path(path).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
