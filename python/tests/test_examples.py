"""Every example runs as its first lines say. The dead rail needs the lab of network namespaces, and so root."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

from support import ROOT, command, launch, run_program

EXAMPLES = pathlib.Path(os.environ.get("TEST_EXAMPLES", ROOT / "python" / "examples"))
LAB = ROOT / "tests" / "lab" / "rails"


class Examples(unittest.TestCase):
    def run_example(self, name, ranks, words, *arguments):
        for settings in ({}, {"RAILYARD_SHARED_MEMORY": "off", "RAILYARD_RAILS": "2"}):
            with self.subTest(settings):
                done = launch(ranks, [str(EXAMPLES / name), *arguments], settings)
                self.assertEqual(done.returncode, 0, done.stdout)
                self.assertIn(words, done.stdout)

    def test_parameter_server(self):
        self.run_example("parameter_server.py", 4, "16 parameters, exact")

    def test_kv_cache(self):
        self.run_example("kv_cache.py", 2, "request 5: 48 blocks, 1536 KiB, right")

    def test_all_to_all(self):
        self.run_example("all_to_all.py", 4, "rank 3: 20 rounds with 4 ranks")

    def test_the_quick_start_of_the_page(self):
        page = ROOT / "docs" / "python.md"
        if not page.exists():
            self.skipTest("the page is part of the source tree")
        text = re.search(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL).group(1)
        done = run_program(text, 2)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("[0 1 2 3 4 5 6 7]", done.stdout)
        self.assertIn("[1 2 3 4 5 6 7 8]", done.stdout)

    def test_training(self):
        self.run_example("training.py", 2, "parameters exact", "--steps", "30")

    def test_training_with_a_rail_that_dies(self):
        if not LAB.exists() or shutil.which("ip") is None:
            self.skipTest("the lab is part of the source tree, and needs iproute2")
        check = subprocess.run([str(LAB), "check"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if check.returncode != 0:
            self.skipTest(check.stdout.strip())
        done = subprocess.run(
            [str(LAB), "--rates", "0,0", "--", command(), "launch", "-n", "2", "--", sys.executable,
             str(EXAMPLES / "training.py"), "--steps", "60", "--cut", "ip link set rail1 down",
             "--mend", "ip link set rail1 up"],
            env=dict(os.environ, RAILYARD_INTERFACES="rail0,rail1"), timeout=100, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("parameters exact", done.stdout)
        self.assertRegex(done.stdout, "links lost [1-9]")


if __name__ == "__main__":
    unittest.main()
