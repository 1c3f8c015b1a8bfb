"""Plain SVG: lines in panels, one below the other."""
import math
import pathlib

import tables

COLOURS = ("#555", "#1f6feb", "#d1242f", "#1a7f37", "#bf8700")
WIDTH, LEFT, RIGHT, TOP, FOOT = 860, 70, 28, 34, 34


class Axis:
    """Values along a line from `begin` to `end`. `base`: logarithmic, whole powers are marked; 0: linear."""

    def __init__(self, values, begin, end, base=0):
        self.begin, self.end, self.base = begin, end, base
        low, high = self.scaled(min(values)), self.scaled(max(values))
        self.low, self.high = (math.floor(low + 1e-9), math.ceil(high - 1e-9)) if base else (low, high)

    def scaled(self, value):
        return math.log(value, self.base) if self.base else value

    def place(self, value):
        return self.begin + (self.end - self.begin) * (self.scaled(value) - self.low) / ((self.high - self.low) or 1)

    def marks(self):
        if self.base:
            return [self.base ** power for power in range(self.low, self.high + 1)]
        step = 10 ** math.floor(math.log10((self.high - self.low) or 1))
        step = next(step * part for part in (0.1, 0.2, 0.5, 1, 2) if (self.high - self.low) / (step * part) <= 7)
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def panel(title, lines, top, height, across, up, label_x, label_y):
    """`lines`: [(points, colour, width)]. `across`, `up`: the logarithm's base of each axis, 0: linear."""
    points = [point for line, _, _ in lines for point in line]
    x_axis = Axis([x for x, _ in points], LEFT, WIDTH - RIGHT, across)
    y_axis = Axis([y for _, y in points], top + height - FOOT, top + TOP, up)
    parts = [f'<text x="{LEFT}" y="{top + TOP - 10}">{title}</text>']
    for mark in x_axis.marks():
        x = x_axis.place(mark)
        parts.append(f'<line x1="{x:.1f}" y1="{top + TOP}" x2="{x:.1f}" y2="{top + height - FOOT}" stroke="#eee"/>'
                     f'<text x="{x:.1f}" y="{top + height - FOOT + 16}" text-anchor="middle">{label_x(mark)}</text>')
    for mark in y_axis.marks():
        y = y_axis.place(mark)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>'
                     f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label_y(mark)}</text>')
    for line, colour, width in lines:
        places = " ".join(f"{x_axis.place(x):.1f},{y_axis.place(y):.1f}" for x, y in line)
        parts.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="{width}"/>')
    return parts, x_axis


def upright(x, top, height, text, colour="#d1242f"):
    return (f'<line x1="{x:.1f}" y1="{top + TOP}" x2="{x:.1f}" y2="{top + height - FOOT}" stroke="{colour}" '
            f'stroke-dasharray="4 3"/><text x="{x + 5:.1f}" y="{top + TOP + 14}" fill="{colour}">{text}</text>')


def page(title, height, parts, legend):
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height + 30}" font-family="sans-serif" '
            'font-size="12">', '<rect width="100%" height="100%" fill="white"/>',
            f'<text x="{LEFT}" y="22" font-size="15">{title}</text>']
    for number, (name, colour) in enumerate(legend):
        x = LEFT + number * (WIDTH - LEFT) // max(len(legend), 1)
        head.append(f'<rect x="{x}" y="{height + 10}" width="18" height="4" fill="{colour}"/>'
                    f'<text x="{x + 24}" y="{height + 16}">{name}</text>')
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


def by_size(title, figures):
    """`figures`: {name: {bytes: microseconds}}."""
    colours = dict(zip(figures, COLOURS))
    lines = [(sorted(times.items()), colours[name], 2) for name, times in figures.items()]
    parts, _ = panel("time of one run", lines, 30, 400, 8, 10, tables.size_text, tables.time_text)
    return page(title, 430, parts, colours.items())


def save(path, text):
    pathlib.Path(path).write_text(text, encoding="utf-8")
