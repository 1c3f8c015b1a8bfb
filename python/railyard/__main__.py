"""The railyard command of an installed wheel (`railyard launch`, `railyard bench`, ...): `python3 -m railyard`."""
import os
import pathlib
import shutil
import sys


def main():
    inside = pathlib.Path(__file__).resolve().parent / "_bin" / "railyard"
    command = str(inside) if inside.exists() else shutil.which("railyard")
    if command is None:
        sys.exit("railyard: the command is not in this package and not on PATH")
    os.execv(command, [command, *sys.argv[1:]])


if __name__ == "__main__":
    main()
