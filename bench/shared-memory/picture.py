"""One-way latency by size, both axes logarithmic, one line per candidate; near cores on the left, far ones on the right."""
import math

from tables import CLASSES

COLOURS = ("#1f6feb", "#555", "#d1242f", "#bf8700", "#1a7f37", "#8250df", "#e85aad", "#0aa5a5", "#953800", "#9aa4af")
PANEL, HEIGHT, LEFT, TOP, BOTTOM, LEGEND = 450, 400, 60, 50, 50, 24


def line_of(samples, where, test, name):
    points = [(size, samples.median(where, test, name, size)) for size in samples.sizes(test)]
    return [point for point in points if point[1]]


class Axis:
    """A logarithmic axis. Its marks are whole powers; whole: it also begins and ends at one."""

    def __init__(self, base, values, begin, end, whole):
        self.base, self.begin, self.end = base, begin, end
        low, high = math.log(min(values), base), math.log(max(values), base)
        self.low, self.high = (math.floor(low), math.ceil(high)) if whole else (low, high)

    def place(self, value):
        share = (math.log(value, self.base) - self.low) / ((self.high - self.low) or 1)
        return self.begin + (self.end - self.begin) * share

    def marks(self):
        return [self.base ** power for power in range(math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9) + 1)]


def size_text(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB" if size >= 1024 else f"{size}"


def panel(where, lines, colours, left, points):
    across = Axis(8, [size for size, _ in points], left + LEFT, left + PANEL - 15, whole=False)
    up = Axis(10, [time for _, time in points], HEIGHT - BOTTOM, TOP, whole=True)
    parts = [f'<text x="{left + LEFT}" y="{TOP - 10}">{where} cores</text>']
    for mark in across.marks():
        x = across.place(mark)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#eee"/>'
                     f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{size_text(mark)}</text>')
    for mark in up.marks():
        y = up.place(mark)
        parts.append(f'<line x1="{left + LEFT}" y1="{y:.1f}" x2="{left + PANEL - 15}" y2="{y:.1f}" stroke="#ddd"/>'
                     f'<text x="{left + LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{mark:g} us</text>')
    for name, line in lines.items():
        points = " ".join(f"{across.place(size):.1f},{up.place(time):.1f}" for size, time in line)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colours[name]}" stroke-width="2"/>')
        parts += [f'<circle cx="{across.place(size):.1f}" cy="{up.place(time):.1f}" r="3" fill="{colours[name]}"/>'
                  for size, time in line]
    return parts


def draw(samples, tests_and_names):
    """tests_and_names: [(test, candidate, what to call it)], the first one ours."""
    colours = {title: COLOURS[number % len(COLOURS)] for number, (_, _, title) in enumerate(tests_and_names)}
    panels = []
    for where in CLASSES:
        lines = {title: line_of(samples, where, test, name) for test, name, title in tests_and_names}
        lines = {title: line for title, line in lines.items() if line}
        if lines:
            panels.append((where, lines))
    # One scale for both panels.
    points = [point for _, lines in panels for line in lines.values() for point in line]
    width, rows = PANEL * max(len(panels), 1), (len(colours) + 2) // 3
    height = HEIGHT + LEGEND * rows
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
             'font-size="12">',
             '<rect width="100%" height="100%" fill="white"/>',
             f'<text x="{LEFT}" y="22" font-size="15">'
             'A message between two processes of one machine: one way, by size</text>']
    for number, (where, lines) in enumerate(panels):
        parts += panel(where, lines, colours, PANEL * number, points)
    for number, (title, colour) in enumerate(colours.items()):
        x, y = LEFT + (width - LEFT) // 3 * (number % 3), HEIGHT + LEGEND * (number // 3)
        parts.append(f'<rect x="{x}" y="{y - 4}" width="18" height="4" fill="{colour}"/>'
                     f'<text x="{x + 24}" y="{y + 2}">{title}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
