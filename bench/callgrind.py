"""What callgrind wrote down: instructions spent inside chosen functions."""
import collections
import re


def inside(profile, chosen):
    """Instructions inside functions with all that they called, by `chosen(name of the function)`; None: not one of them. In
    a profile a line "calls=..." is followed by one whose second number is the cost of that call."""
    names, costs, called, next_is_cost = {}, collections.Counter(), None, False
    for line in profile.splitlines():
        if line.startswith(("fn=", "cfn=")):
            number, name = re.match(r"c?fn=\((\d+)\)(?: (.*))?", line).groups()
            if name:
                names[number] = chosen(name)
            called = names[number]
        elif line.startswith("calls="):
            next_is_cost = True
        elif next_is_cost:
            next_is_cost = False
            if called is not None:
                costs[called] += int(line.split()[1])
    return costs
