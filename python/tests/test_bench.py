"""Figures are dicts and JSON; what they are is not a matter of tests."""
import json
import unittest

from support import launch


class Bench(unittest.TestCase):
    def test_figures(self):
        for test in ("put_signal", "put", "get", "atomic", "call"):
            with self.subTest(test):
                done = launch(2, ["-m", "railyard.bench", test, "--rounds", "1", "--round-ms", "5", "--json", "-"])
                self.assertEqual(done.returncode, 0, done.stdout)
                figures = json.loads(done.stdout)
                self.assertEqual(figures["test"], test)
                self.assertGreater(figures["median"], 0)
                self.assertEqual(len(figures["all"]), 1)


if __name__ == "__main__":
    unittest.main()
